// empty.js: what stands in the place of the table when there is nothing to show.

import { command } from "./commands.js";
import { el, setText } from "./dom.js";
import { held } from "./health.js";

// curlLine is a command that acquires a lock at origin, ready for a shell.
export function curlLine(origin) {
  const url = `${origin}/locks/demo`;
  const quoted = /^[A-Za-z0-9:/.-]+$/.test(url) ? url : `'${url}'`;
  return `curl -X POST ${quoted} \\\n     -d '{"owner":"me","ttl_ms":60000}'`;
}

// Empty fills its place only when what it says changes, so that a selection in
// the command survives the next answer.
export class Empty {
  #root;
  #shown = "";
  #onClear;
  #held = el("p", { class: "held", hidden: "" });
  #till = null;

  constructor(root, { onClear }) {
    this.#root = root;
    this.#onClear = onClear;
  }

  // show takes the search, whether more names are left to look through, and
  // whether there is anything to say.
  show({ visible, q, more, filtered }) {
    this.#root.hidden = !visible;
    const key = visible ? JSON.stringify([q, more, filtered]) : this.#shown;
    if (key === this.#shown) return;
    this.#shown = key;
    this.#root.replaceChildren(...(q === "" && !filtered ? this.#noLocks() : this.#noMatch(q, more)));
  }

  // unknown says, while visible, that no answer has come yet.
  unknown(visible) {
    this.#root.hidden = !visible;
    const key = visible ? "unknown" : this.#shown;
    if (key === this.#shown) return;
    this.#shown = key;
    this.#root.replaceChildren(el("h3", null, "No lock is known yet"),
      el("p", null, "Locks are shown as soon as the gateway can list them. Holders keep their locks until their leases expire."));
  }

  // hold says until when a quarantine lets nobody take a lock; null: there is none.
  hold(till, now) {
    this.#till = till;
    this.#held.hidden = till === null;
    this.tick(now);
  }

  tick(now) {
    setText(this.#held, this.#till === null ? "" : held(this.#till, now));
  }

  #noMatch(q, more) {
    const clear = el("button", { type: "button", class: "button" }, q === "" ? "Show all" : "Clear the search");
    clear.addEventListener("click", this.#onClear);
    if (q === "") return [el("h3", null, more ? "No such lock so far" : "No such lock"), clear];
    return [
      el("h3", null, more ? "No match so far for " : "No live lock matches ", el("bdi", { class: "quoted" }, q)),
      el("p", null, "The search looks within names, owners, public lease ids and metadata."),
      clear,
    ];
  }

  #noLocks() {
    const line = curlLine(location.origin);
    return [
      el("h3", null, "Nothing is locked"),
      this.#held,
      el("p", null, "Acquire a lock from a shell. It shows up here and counts down until it is released or its minute is over."),
      command(line),
      el("p", { class: "muted" },
        "The answer holds a lease id, to renew and release with, and a fencing token. ",
        el("a", { href: "/openapi.yaml" }, "The whole interface"), "."),
    ];
  }
}
