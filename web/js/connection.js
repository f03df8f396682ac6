// connection.js: shows the state of the connection: a word in the corner while
// all is well, a banner with the age of what is shown when it is not.

import { el, setText } from "./dom.js";
import { label, sentence, stale, times } from "./state.js";

export class Connection {
  #state = null;
  #shown = ""; // what is shown of it
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

  // update shows a state; nothing is touched that is shown already.
  update(state, now) {
    this.#state = state;
    const change = state.kind === "store" ? this.#refusal?.remedy : undefined;
    const what = { kind: state.kind, label: label(state), old: stale(state), sentence: sentence(state, this.#refusal), change };
    const key = JSON.stringify(what);
    if (key !== this.#shown) this.#show(what);
    this.#shown = key;
    this.tick(now);
  }

  #show({ kind, label: word, old, sentence: text, change }) {
    const { corner, label: words, banner, sentence: spoken, remedy, page } = this.#nodes;
    corner.dataset.kind = kind;
    setText(words, word);
    corner.title = kind === "asking" ? "The gateway\u2019s event stream is not available, so the page asks every two seconds." : "";
    page.toggleAttribute("data-stale", old);
    banner.hidden = !old;
    banner.dataset.kind = kind;
    // Only the sentence is read aloud, and only when it changes.
    setText(spoken, text);
    remedy.hidden = change === undefined;
    remedy.replaceChildren(...change === undefined ? [] : ["To change: ", el("bdi", null, change)]);
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
