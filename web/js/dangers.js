// dangers.js: shows what is wrong with the store itself: a quarantine, and what
// endangers the promises of locks, each with what to change.

import { el, reconcile, setText } from "./dom.js";
import { endangered, left, sentence, summary } from "./health.js";

export class Dangers {
  #nodes;
  #views = new Map();
  #till = null;

  constructor(root) {
    const id = (name) => root.getElementById(name);
    this.#nodes = {
      quarantine: id("quarantine"), quarantined: id("quarantine-sentence"), left: id("quarantine-left"),
      dangers: id("dangers"), summary: id("dangers-sentence"), list: id("dangers-list"),
    };
  }

  update({ dangers, till, refused }, now) {
    const nodes = this.#nodes;
    this.#till = till;
    nodes.quarantine.hidden = till === null;
    setText(nodes.quarantined, till === null ? ""
      : "The store may have lost leases, so no new ones are granted for now. Leases that it still has can be renewed.");
    nodes.dangers.hidden = dangers.length === 0;
    setText(nodes.summary, summary(dangers, refused));
    reconcile(nodes.list, this.#views, dangers, ({ key }) => key, () => new Danger(), (view, danger) => view.tell(danger));
    this.tick(now);
  }

  tick(now) {
    if (this.#till !== null) setText(this.#nodes.left, left(this.#till, now));
  }
}

// Danger is an entry of the list.
class Danger {
  element = el("li");
  #shown = "";

  tell({ key, promise, detail, remedy, nodes }) {
    const shown = key + nodes;
    if (shown === this.#shown) return;
    this.#shown = shown;
    this.element.replaceChildren(
      el("strong", null, `${endangered(promise)}: `), sentence(detail),
      nodes.length > 0 ? el("span", { class: "nodes" }, ` This is about ${nodes.join(", ")}.`) : "",
      remedy === "" ? "" : el("span", { class: "remedy" }, "To change: ", el("bdi", null, remedy)),
    );
  }
}
