// leaders.js: the locks that most wait for, those that have been held longest, and how the
// store is.

import { age } from "./clock.js";
import { el, reconcile, setText } from "./dom.js";
import { condition } from "./health.js";
import { lockHref } from "./route.js";

class Entry {
  #figure = el("span", { class: "digits" });
  #of;
  #lock = null;

  // of writes the figure of a lock at a time.
  constructor({ name }, of) {
    this.#of = of;
    this.element = el("li", null, el("a", { href: lockHref(name), title: name }, el("bdi", null, name)), " ", this.#figure);
  }

  tell(lock, now) {
    this.#lock = lock;
    this.tick(now);
  }

  tick(now) {
    setText(this.#figure, this.#of(this.#lock, now));
  }
}

const waiting = (lock) => `${lock.waiting.toLocaleString("en")} waiting`;
const held = ({ holders }, now) => age(now - Math.min(...holders.map(({ acquiredMark }) => acquiredMark)));

// Leaders is what is shown of them, once it is opened: that takes reading all locks.
export class Leaders {
  #nodes;
  #views = { contended: new Map(), longest: new Map() };

  // onOpen is called when it is opened or closed.
  constructor(root, { onOpen }) {
    const id = (name) => root.getElementById(name);
    this.#nodes = { root: id("leaders"), contended: id("contended"), longest: id("longest"), store: id("store"), none: { contended: id("contended-none"), longest: id("longest-none") } };
    this.#nodes.root.addEventListener("toggle", onOpen);
  }

  get open() {
    return this.#nodes.root.open;
  }

  // update shows the leaders; more, that there may be others among what is not read yet.
  update(found, more, now) {
    for (const [key, of] of [["contended", waiting], ["longest", held]]) {
      reconcile(this.#nodes[key], this.#views[key], found[key], ({ name }) => name, (lock) => new Entry(lock, of), (view, lock) => view.tell(lock, now));
      setText(this.#nodes.none[key], more ? "Looking further\u2026" : found[key].length > 0 ? "" : key === "contended" ? "Nobody waits." : "Nothing is held.");
    }
  }

  // tell says how the store is.
  tell(health) {
    setText(this.#nodes.store, condition(health));
  }

  tick(now) {
    if (!this.open) return;
    for (const views of Object.values(this.#views)) for (const view of views.values()) view.tick(now);
  }
}
