// break.js: ends somebody else's lease, once the name of its lock has been typed.

import { el, setText } from "./dom.js";

// The interface takes so many bytes of a reason, and says so of more.
const maxReason = 256;

// Break is the dialog. It says what will happen, and then what has.
export class Break {
  #dialog;
  #api;
  #what = null; // {name, token}
  #text = el("p", { id: "break-text" });
  #typed = el("input", { id: "break-name", type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: "false", "aria-describedby": "break-text" });
  #label = el("label", { for: "break-name" });
  #reason = el("input", { id: "break-reason", type: "text", maxlength: String(maxReason), autocomplete: "off" });
  #problem = el("p", { class: "problem", role: "alert", hidden: true });
  #go = el("button", { type: "button", class: "button danger" }, "Break the lease");
  #onDone;

  // onDone is called with the name when a lease was broken and the dialog has closed for it.
  constructor(dialog, api, { onDone }) {
    this.#dialog = dialog;
    this.#api = api;
    this.#onDone = onDone;
    const cancel = el("button", { type: "button", class: "button" }, "Cancel");
    cancel.addEventListener("click", () => dialog.close());
    this.#typed.addEventListener("input", () => this.#check());
    for (const input of [this.#typed, this.#reason]) {
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !this.#go.disabled) this.#break();
      });
    }
    this.#go.addEventListener("click", () => this.#break());
    dialog.append(el("h2", { id: "break-title" }, "Break a lease"), this.#text, this.#label, this.#typed,
      el("label", { for: "break-reason" }, "Why, for the holder and the history (may be left empty)"), this.#reason, this.#problem,
      el("p", { class: "end" }, cancel, " ", this.#go));
  }

  // open asks about a holder of a lock.
  open(lock, holder) {
    const { name, waiters, waiting } = lock;
    this.#what = { name, token: holder.fencing_token };
    const next = waiting === 0 ? "Nobody waits for the lock."
      : waiters[0]?.owner ? ["Next in the queue is ", el("bdi", null, waiters[0].owner), "."] : "The next of the queue gets the lock, once it fits.";
    this.#text.replaceChildren(el("bdi", null, holder.owner || "A holder without an owner"), " loses its lease at once, and learns of it when it renews next. Until then it may go on: only a fence keeps out what it writes with the token ",
      String(holder.fencing_token), ". ", ...[next].flat());
    this.#label.replaceChildren("Type ", el("code", null, name), " to break it");
    this.#typed.value = this.#reason.value = "";
    this.#say("");
    this.#check();
    this.#dialog.showModal();
    this.#typed.focus();
  }

  #check() {
    this.#go.disabled = this.#typed.value !== this.#what.name;
  }

  #say(text) {
    setText(this.#problem, text);
    this.#problem.hidden = text === "";
  }

  async #break() {
    const what = this.#what;
    this.#go.disabled = true;
    this.#say("");
    const asks = () => this.#what === what && this.#dialog.open; // or it was cancelled, and asks about another
    try {
      await this.#api.breakLease(what.name, what.token, this.#reason.value.trim());
      if (!asks()) return;
      this.#dialog.close();
      this.#onDone(what.name);
    } catch (error) {
      if (error.status === undefined) throw error; // a defect of the page: let it be seen
      if (!asks()) return;
      this.#say(refused(error));
      this.#check();
    }
  }
}

// refused says why a lease was not broken, and whether that is known.
export function refused({ status, code, detail }) {
  if (code === "stale_token") return "This lease is over already.";
  if (status === 401 || status === 403) return `The gateway does not let you: it wants a key with the scope admin. It says: \u201c${detail}\u201d.`;
  if (status === 0 || status >= 500) return `It is not known whether the lease was broken: trying again does no harm. ${detail ? `The gateway says: \u201c${detail}\u201d.` : "The gateway did not answer."}`;
  return `The gateway says: \u201c${detail}\u201d.`;
}
