// waiters.js: who waits for the lock that is open, in the order in which they
// will be served.

import { age, duration } from "./clock.js";
import { cell, el, owner, reconcile, setText, table } from "./dom.js";

// More waiters than this are only counted.
const maxShown = 50;

class Waiter {
  #position = el("span");
  #waiting = el("span");
  #turn = el("span", { class: "muted turn" }); // when it will be served
  #since = Infinity;
  #bar = el("span", { class: "wait-bar", "aria-hidden": "true" });

  #waiter = null;

  // onEvict is called with the waiter whom somebody wants to take out.
  constructor(waiter, onEvict) {
    const evict = el("button", { type: "button", class: "button evict", "aria-label": `Evict ${waiter.owner || "this waiter"}\u2026` }, "Evict\u2026");
    evict.addEventListener("click", () => onEvict(this.#waiter));
    this.element = el("tr", { role: "row" },
      cell("position", this.#position),
      cell("owner", owner(waiter.owner), waiter.mode === "shared" ? el("span", { class: "muted mode" }, waiter.permits > 1 ? `${waiter.permits} permits` : "shared") : null),
      cell("waiting", this.#bar, this.#waiting, this.#turn), cell("act", evict));
    this.element.dataset.lease = waiter.lease;
    this.element.title = waiter.lease;
    this.element.toggleAttribute("data-since-opened", waiter.since > 0); // the page's clock begins when it is opened
  }

  get since() {
    return this.#since;
  }

  // draw makes the bar as long as the wait is, compared with the longest.
  draw(longest, now) {
    const width = `${Math.round(100 * Math.min(1, (now - this.#since) / Math.max(1, longest)))}%`;
    if (this.#bar.style.width !== width) this.#bar.style.width = width;
  }

  update(waiter, now) {
    this.#waiter = waiter;
    setText(this.#position, String(waiter.position));
    // Answers differ by the time they were under way: the count never goes back.
    this.#since = Math.min(this.#since, waiter.since);
    this.tick(now);
  }

  tick(now) {
    setText(this.#waiting, duration(now - this.#since));
    const left = this.#waiter.turn === null ? 0 : this.#waiter.turn - now;
    setText(this.#turn, left > 0 ? `about ${age(left)} more` : "");
  }
}

// Waiters is the section of the queue; there is none while nobody waits.
export class Waiters {
  #views = new Map();
  #count = el("span", { class: "muted" });
  #rest = el("p", { class: "muted rest" });
  #why = el("p", { class: "why" });
  #body;
  #onEvict;

  constructor(onEvict) {
    this.#onEvict = onEvict;
    const { element, body } = table("queue", "Who waits, in the order of the queue",
      { position: "Place", owner: "Owner", waiting: "Waiting for", act: el("span", { class: "visually-hidden" }, "Action") });
    this.#body = body;
    this.element = el("div", { class: "waiters" }, el("h3", null, "Queue ", this.#count), this.#why, element, this.#rest);
    this.clear();
  }

  // update shows the queue of a lock, and why it waits.
  update(lock, reason, now) {
    const { waiters, waiting } = lock;
    setText(this.#why, reason);
    this.element.hidden = waiting === 0;
    setText(this.#count, `${waiting} waiting`);
    const shown = waiters.slice(0, maxShown);
    reconcile(this.#body, this.#views, shown, ({ lease }) => lease,
      (waiter) => new Waiter(waiter, this.#onEvict), (view, waiter) => view.update(waiter, now));
    this.#rest.hidden = waiting <= shown.length;
    setText(this.#rest, `and ${waiting - shown.length} more behind them`);
  }

  tick(now) {
    const longest = Math.max(0, ...[...this.#views.values()].map(({ since }) => now - since));
    for (const view of this.#views.values()) {
      view.tick(now);
      view.draw(longest, now);
    }
  }

  clear() {
    this.element.hidden = true;
    this.#views.clear();
    this.#body.replaceChildren();
  }
}
