// waiters.js: who waits for the lock that is open, in the order in which they
// will be served.

import { duration } from "./clock.js";
import { cell, el, owner, reconcile, setText, table } from "./dom.js";

// More waiters than this are only counted.
const maxShown = 50;

class Waiter {
  #position = el("span");
  #waiting = el("span");
  #since = Infinity;

  constructor(waiter) {
    this.element = el("tr", { role: "row" },
      cell("position", this.#position),
      cell("owner", owner(waiter.owner), waiter.mode === "shared" ? el("span", { class: "muted mode" }, "shared") : null),
      cell("waiting", this.#waiting));
    this.element.dataset.lease = waiter.lease;
    this.element.title = waiter.lease;
  }

  update(waiter, now) {
    setText(this.#position, String(waiter.position));
    // Answers differ by the time they were under way: the count never goes back.
    this.#since = Math.min(this.#since, waiter.since);
    this.tick(now);
  }

  tick(now) {
    setText(this.#waiting, duration(now - this.#since));
  }
}

// Waiters is the section of the queue; there is none while nobody waits.
export class Waiters {
  #views = new Map();
  #count = el("span", { class: "muted" });
  #rest = el("p", { class: "muted rest" });
  #body;

  constructor() {
    const { element, body } = table("queue", "Who waits, in the order of being served",
      { position: "Place", owner: "Owner", waiting: "Waiting for" });
    this.#body = body;
    this.element = el("div", { class: "waiters" }, el("h3", null, "Queue ", this.#count), element, this.#rest);
    this.clear();
  }

  update(lock, now) {
    const { waiters, waiting } = lock;
    this.element.hidden = waiting === 0;
    setText(this.#count, `${waiting} waiting`);
    const shown = waiters.slice(0, maxShown);
    reconcile(this.#body, this.#views, shown, ({ lease }) => lease,
      (waiter) => new Waiter(waiter), (view, waiter) => view.update(waiter, now));
    this.#rest.hidden = waiting <= shown.length;
    setText(this.#rest, `and ${waiting - shown.length} more behind them`);
  }

  tick(now) {
    for (const view of this.#views.values()) view.tick(now);
  }

  clear() {
    this.element.hidden = true;
    this.#views.clear();
    this.#body.replaceChildren();
  }
}
