// connection.js: shows the state of the connection: a word in the corner while
// all is well, a banner with the age of what is shown when it is not.

import { el, setText } from "./dom.js";
import { label, sentence, stale, times } from "./state.js";

export class Connection {
  #state = null;
  #refusal = null;
  #nodes;

  constructor(root, { onRetry }) {
    const id = (name) => root.getElementById(name);
    this.#nodes = {
      corner: id("connection"), label: id("connection-label"),
      banner: id("banner"), sentence: id("banner-sentence"), times: id("banner-times"), remedy: id("banner-remedy"),
      page: root.documentElement,
    };
    id("retry").addEventListener("click", onRetry);
  }

  update(state, now) {
    const { corner, label: word, banner, sentence: text, remedy, page } = this.#nodes;
    this.#state = state;
    corner.dataset.kind = state.kind;
    setText(word, label(state));
    corner.title = state.kind === "asking" ? "The gateway\u2019s stream of events can\u2019t be had, so the page asks every two seconds." : "";
    page.toggleAttribute("data-stale", stale(state));
    banner.hidden = !stale(state);
    banner.dataset.kind = state.kind;
    // Only the sentence is read aloud, and only when it changes.
    setText(text, sentence(state, this.#refusal));
    const change = state.kind === "store" ? this.#refusal?.remedy : undefined;
    remedy.hidden = change === undefined;
    remedy.replaceChildren(...change === undefined ? [] : ["To change: ", el("bdi", null, change)]);
    this.tick(now);
  }

  // explain says why the store refuses the gateway, null if it does not.
  explain(refusal, now) {
    this.#refusal = refusal;
    if (this.#state !== null) this.update(this.#state, now);
  }

  tick(now) {
    if (this.#state !== null) setText(this.#nodes.times, times(this.#state, now));
  }
}
