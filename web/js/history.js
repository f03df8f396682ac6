// history.js: who held the lock that is open, the newest first, and how each
// lease ended.

import { duration, instant, since, span } from "./clock.js";
import { cell, el, owner, reconcile, setText, table } from "./dom.js";
import { axis, bar, gaps } from "./timeline.js";

const words = { held: "Held", released: "Released", expired: "Expired", broken: "Broken" };
const marks = { held: "\u2022", released: "\u2713", expired: "!", broken: "\u00d7" };

// A Grant is one line of the history. Only one that is held still changes.
class Grant {
  #mark = el("span", { class: "mark", "aria-hidden": "true" });
  #word = el("span");
  #held = el("span");
  #waited = el("span");
  #when = el("time");
  #why = el("bdi", { class: "why" });
  #grant = null;
  #gap = el("span", { class: "gap" });
  #wait = el("span", { class: "stretch wait" });
  #hold = el("span", { class: "stretch hold" });

  constructor(grant) {
    this.element = el("tr", { role: "row" },
      cell("outcome", this.#mark, this.#word),
      cell("owner", owner(grant.owner), grant.mode === "shared" ? el("span", { class: "muted mode" }, "shared") : null),
      cell("held", this.#held),
      cell("waited", this.#waited),
      cell("when", this.#when),
      cell("token", el("span", { class: "digits" }, String(grant.fencing_token)), this.#gap, this.#why),
      cell("line", el("span", { class: "stretches", "aria-hidden": "true" }, this.#wait, this.#hold)));
    this.element.dataset.lease = grant.lease;
    this.element.title = grant.lease;
    // The page's clock begins when it is opened.
    this.element.toggleAttribute("data-since-opened", grant.since > 0);
  }

  // draw places the grant on the axis that all of them have; gap is for how long nobody
  // held the lock before it.
  draw(range, gap, now) {
    const { wait, start, end } = bar(this.#grant, range, now);
    place(this.#wait, wait, start);
    place(this.#hold, start, end);
    setText(this.#gap, gap === 0 ? "" : `after ${duration(gap)} free`);
  }

  update(grant, storeNow, now) {
    this.#grant = grant;
    const outcome = Object.hasOwn(words, grant.outcome) ? grant.outcome : "";
    this.element.dataset.outcome = outcome;
    setText(this.#mark, marks[outcome] ?? "?");
    setText(this.#word, words[outcome] ?? String(grant.outcome));
    setText(this.#waited, grant.waited_ms > 0 ? duration(grant.waited_ms) : "\u2013");
    setText(this.#why, grant.break_reason ?? "");
    const at = grant.ended_at ?? grant.acquired_at;
    setText(this.#when, since(at, storeNow));
    this.#when.dateTime = at;
    this.#when.title = grant.ended_at
      ? `from ${instant(grant.acquired_at)} to ${instant(grant.ended_at)}` : `from ${instant(grant.acquired_at)}`;
    this.tick(now);
  }

  tick(now) {
    setText(this.#held, duration(this.#grant.outcome === "held" ? now - this.#grant.since : this.#grant.held_ms));
  }
}

function place({ style }, from, to) {
  const left = `${(100 * from).toFixed(2)}%`;
  const width = `${(100 * (to - from)).toFixed(2)}%`;
  if (style.left !== left) style.left = left;
  if (style.width !== width) style.width = width;
}

// How often the axis moves on while a lock is held.
const drawMs = 1000;

// History is the section of the past; there is none if the gateway has none.
export class History {
  #views = new Map();
  #body;
  #table;
  #none = el("p", { class: "muted" }, "No earlier holder is remembered.");
  #axis = el("p", { class: "muted axis" });
  #grants = [];
  #drawnAt = -Infinity;

  constructor() {
    const { element, body } = table("history", "Who held the lock, newest first", {
      outcome: "Outcome", owner: "Owner", held: "Held for", waited: "Waited", when: "When it began or ended", token: "Token", line: "Line",
    });
    this.#table = element;
    this.#body = body;
    this.element = el("div", { class: "past" }, el("h3", null, "History"), this.#axis, element, this.#none);
    this.clear();
  }

  update(grants, storeNow, now) {
    this.element.hidden = grants === null;
    if (grants === null) return;
    this.#table.hidden = grants.length === 0;
    this.#none.hidden = grants.length > 0;
    reconcile(this.#body, this.#views, grants, ({ fencing_token: token }) => token,
      (grant) => new Grant(grant), (view, grant) => view.update(grant, storeNow, now));
    this.#grants = grants;
    this.#draw(now);
  }

  tick(now) {
    for (const view of this.#views.values()) view.tick(now);
    if (now - this.#drawnAt >= drawMs) this.#draw(now);
  }

  #draw(now) {
    this.#drawnAt = now;
    const range = axis(this.#grants, now);
    this.#axis.hidden = range === null;
    if (range === null) return;
    setText(this.#axis, `The lines are the last ${span(range.to - range.from)}: waiting, then holding.`);
    const free = gaps(this.#grants, now);
    for (const [token, view] of this.#views) view.draw(range, free.get(token) ?? 0, now);
  }

  clear() {
    this.element.hidden = true;
    this.#grants = [];
    this.#views.clear();
    this.#body.replaceChildren();
  }
}
