// attention.js: the locks that an operator comes for: those that are waited for longest, those
// that have been held longest while others wait, and those that are about to expire.

import { age, duration } from "./clock.js";
import { el, pointing, reconcile, setText } from "./dom.js";
import { condition } from "./health.js";
import { holding } from "./holding.js";
import { address, everything, lockHref } from "./route.js";
import { find } from "./shown.js";
import { leaders } from "./walk.js";

const since = (of, now) => age(Math.max(0, now - of));
const earliest = ({ holders }, key) => Math.min(...holders.map((holder) => holder[key]));
const who = (lock) => (lock.holders.length === 0 ? "" : holding(lock).who);
const never = ({ holders }) => (holders.some(({ renewedMark }) => renewedMark === null) ? "never renewed" : "");

// Each of the lists: what it says of a lock, what it says if there is none, and the filters and
// order of all of its locks.
const lists = {
  waited: { figure: (lock, now) => since(lock.waitedMark, now), notes: (lock) => [`${lock.waiting.toLocaleString("en")} waiting`], none: "Nobody waits.", all: { waited: true, sort: "waits" } },
  stuck: { figure: (lock, now) => since(earliest(lock, "acquiredMark"), now), notes: (lock) => [who(lock), never(lock)], none: "Nobody waits for a held lock.", all: { waited: true, sort: "held" } },
  expiring: { figure: (lock, now) => duration(earliest(lock, "deadline") - now), notes: (lock) => [who(lock)], none: "Nothing is about to expire.", all: { expiring: true, sort: "remaining" } },
};

class Entry {
  #figure = el("span", { class: "digits" });
  #notes = el("bdi", { class: "notes muted" });
  #of;
  #lock = null;

  constructor({ name }, of) {
    this.#of = of;
    this.element = el("li", null, el("a", { href: lockHref(name), title: name }, el("bdi", null, name)), this.#figure, this.#notes);
  }

  tell(lock, now) {
    this.#lock = lock;
    setText(this.#notes, this.#of.notes(lock).filter((note) => note !== "").join(", "));
    this.#notes.title = this.#notes.textContent;
    this.tick(now);
  }

  // gone says that its lock belongs to the list no more.
  gone() {
    this.#lock = null;
    setText(this.#figure, "over");
    setText(this.#notes, "");
  }

  tick(now) {
    if (this.#lock !== null) setText(this.#figure, this.#of.figure(this.#lock, now));
  }
}

// Attention is the section. Its entries keep their places while somebody points at it or has the
// focus in it.
export class Attention {
  #root;
  #parts = {};
  #pointed;
  #store;
  #table;
  #waits = null; // the report that is to be shown once nobody points at the section

  // onAll is called with the filters and order of a list.
  constructor(root, { onAll }) {
    const id = (name) => root.getElementById(name);
    this.#root = id("attention");
    this.#pointed = pointing(this.#root);
    this.#store = id("store");
    this.#table = id("table");
    for (const [key, of] of Object.entries(lists)) {
      this.#parts[key] = { of, list: id(key), none: id(`${key}-none`), all: id(`${key}-all`), views: new Map() };
      this.#parts[key].all.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        onAll(of.all);
      });
    }
    for (const over of ["pointerleave", "focusout"]) {
      this.#root.addEventListener(over, () => setTimeout(() => {
        if (this.#waits !== null) this.update(this.#waits, performance.now());
      }));
    }
  }

  // show has the links lead to what a route's search and prefix leave.
  show({ q, prefix }) {
    for (const { of, all } of Object.values(this.#parts)) all.href = address(location.pathname, { ...everything, q, prefix, ...of.all, name: null });
  }

  get #held() {
    return this.#pointed("li") !== null || this.#root.querySelector("li :focus-visible") !== null;
  }

  // update shows a report of the walk.
  update(report, now) {
    const found = leaders(report);
    const held = this.#held;
    this.#waits = held ? report : null;
    for (const [key, { of, list, none, all, views }] of Object.entries(this.#parts)) {
      const { locks, more } = key === "expiring" ? report.expiring : report.waited;
      if (held) {
        for (const lock of found[key]) views.get(lock.name)?.tell(lock, now);
        for (const [name, view] of views) if (find(locks, name) === undefined) view.gone();
        continue;
      }
      reconcile(list, views, found[key], ({ name }) => name, (lock) => new Entry(lock, of), (view, lock) => view.tell(lock, now));
      const queues = key === "expiring" || report.queues;
      const unknown = !report.known || (key === "waited" && report.waiting.count > 0); // how many wait is known before for how long
      const some = unknown ? "Looking\u2026" : "None among the first locks by name.";
      setText(none, found[key].length > 0 ? "" : !queues ? "This store has no queues." : unknown || more ? some : of.none);
      all.hidden = found[key].length === 0;
    }
    if (!held) this.#fit(Math.max(...Object.values(found).map(({ length }) => length)));
  }

  // fit gives the lists room for so many rows. The room that they once took they keep, until there is nothing
  // at all; and what somebody points at in the table stays where it is.
  #fit(rows) {
    const before = Number(this.#root.dataset.rows ?? 1);
    if (rows > 0 ? rows <= before : before === 1) return;
    const pointed = this.#table.matches(":hover");
    if (pointed && rows === 0) return;
    const place = () => this.#table.getBoundingClientRect().top;
    const top = pointed ? place() : 0;
    const show = (count) => { this.#root.dataset.rows = count; };
    show(Math.max(1, rows));
    if (!pointed) return;
    const moved = place() - top; // none where the browser has seen to it
    scrollBy(0, moved);
    if (Math.abs(place() - top) > 1) show(before); // there is no room to scroll: once it is pointed at no more
  }

  // tell says how the store is.
  tell(health) {
    setText(this.#store, condition(health));
  }

  tick(now) {
    for (const { views } of Object.values(this.#parts)) for (const view of views.values()) view.tick(now);
  }
}
