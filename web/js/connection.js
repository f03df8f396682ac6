// connection.js: shows the state of the connection: a word in the corner while
// all is well, a banner with the age of what is shown when it is not.

import { setText } from "./dom.js";
import { label, sentence, stale, times } from "./state.js";

export class Connection {
  #state = null;
  #nodes;

  constructor(root, { onRetry }) {
    const id = (name) => root.getElementById(name);
    this.#nodes = {
      corner: id("connection"), label: id("connection-label"),
      banner: id("banner"), sentence: id("banner-sentence"), times: id("banner-times"),
      page: root.documentElement,
    };
    id("retry").addEventListener("click", onRetry);
  }

  update(state, now) {
    const { corner, label: word, banner, sentence: text, page } = this.#nodes;
    this.#state = state;
    corner.dataset.kind = state.kind;
    setText(word, label(state));
    corner.title = state.kind === "asking" ? "The gateway\u2019s stream of events can\u2019t be had, so the page asks every two seconds." : "";
    page.toggleAttribute("data-stale", stale(state));
    banner.hidden = !stale(state);
    banner.dataset.kind = state.kind;
    // Only the sentence is read aloud, and only when it changes.
    setText(text, sentence(state));
    this.tick(now);
  }

  tick(now) {
    if (this.#state !== null) setText(this.#nodes.times, times(this.#state, now));
  }
}
