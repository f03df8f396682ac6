// signin.js: asks for a key where the gateway wants one, and forgets it when told to.

import { setText } from "./dom.js";
import * as key from "./key.js";

// SignIn is the form, which stands in place of all else while it is open.
export class SignIn {
  #nodes;
  #left; // why the page that was here before has left, empty if it was asked to

  // onKey hears that there is a key to try.
  constructor(root, { onKey }) {
    const id = (name) => root.getElementById(name);
    this.#nodes = {
      section: id("signin"), input: id("key"), problem: id("signin-problem"), out: id("sign-out"), page: root.documentElement,
    };
    const { input, out } = this.#nodes;
    id("signin-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = input.value.trim();
      if (!key.wellFormed(text)) {
        this.#say("This is not a key. A key begins with fp_.");
        input.focus();
        return;
      }
      input.value = "";
      key.keep(text);
      this.#show(false);
      onKey();
    });
    out.addEventListener("click", () => this.leave());
    out.hidden = key.current() === null;
    this.#left = key.takeReason();
  }

  // given says that there is a key.
  get given() {
    return key.current() !== null;
  }

  get open() {
    return !this.#nodes.section.hidden;
  }

  // refused opens the form, for the gateway does not let the page in: detail is what it
  // says. A key that did not help is forgotten.
  refused(detail) {
    const why = key.current() === null ? this.#left : detail;
    this.#left = "";
    key.forget();
    this.#say(why === "" ? "" : `The gateway does not accept this key. It says: \u201c${why}\u201d.`);
    this.#show(true);
    this.#nodes.input.focus();
  }

  // leave forgets the key, and all that was shown. detail is what the gateway says, if it wants
  // that.
  leave(detail = "") {
    key.forget();
    key.keepReason(detail);
    location.reload();
  }

  #show(open) {
    const { section, out, page } = this.#nodes;
    section.hidden = !open;
    page.toggleAttribute("data-signin", open);
    out.hidden = open || key.current() === null;
  }

  #say(text) {
    setText(this.#nodes.problem, text);
    this.#nodes.problem.hidden = text === "";
  }
}
