// break.js: ends somebody else's lease, or takes somebody out of the queue, once the name of
// the lock has been typed.

import { plainSpan } from "./clock.js";
import { breakCommands, command, evictCommands } from "./commands.js";
import { el, setText } from "./dom.js";
import { current as currentKey } from "./key.js";

// The interface takes so many bytes of a reason, and says so of more.
const maxReason = 256;

const notices = [10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000];

// Break is the dialog. It says what will happen, and then what has.
export class Break {
  #dialog;
  #api;
  #what = null; // {name, token} of a lease to break, {name, lease} of a waiter to evict
  #title = el("h2", { id: "break-title" });
  #text = el("p", { id: "break-text" });
  #typed = el("input", { id: "break-name", type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: "false", "aria-describedby": "break-text" });
  #label = el("label", { for: "break-name" });
  #reasonLabel = el("label", { for: "break-reason" });
  #reason = el("input", { id: "break-reason", type: "text", maxlength: String(maxReason), autocomplete: "off" });
  #noticeLabel = el("label", { for: "break-notice" }, "Notice");
  #notice = el("select", { id: "break-notice" }, el("option", { value: "0" }, "none: break at once"),
    ...notices.map((ms) => el("option", { value: String(ms) }, `${plainSpan(ms)} to finish`)));
  #consequence = el("p", { id: "break-consequence", class: "muted" });
  #commands = el("details", { class: "commands" });
  #problem = el("p", { class: "problem", role: "alert", hidden: true });
  #go = el("button", { type: "button", class: "button danger" });
  #onDone;

  // onDone is called with the name when it was done and the dialog has closed for it.
  constructor(dialog, api, { onDone }) {
    this.#dialog = dialog;
    this.#api = api;
    this.#onDone = onDone;
    const cancel = el("button", { type: "button", class: "button" }, "Cancel");
    cancel.addEventListener("click", () => dialog.close());
    this.#typed.addEventListener("input", () => this.#check());
    for (const input of [this.#typed, this.#reason]) {
      input.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && !this.#go.disabled) this.#act();
      });
    }
    for (const input of [this.#reason, this.#notice]) input.addEventListener("input", () => this.#tell());
    this.#go.addEventListener("click", () => this.#act());
    dialog.append(this.#title, this.#text, this.#label, this.#typed, this.#noticeLabel, this.#notice, this.#consequence,
      this.#reasonLabel, this.#reason, this.#commands, this.#problem, el("p", { class: "end" }, cancel, " ", this.#go));
  }

  // open asks about a holder of a lock.
  open({ name, waiters, waiting }, holder) {
    const next = waiting === 0 ? "Nobody waits for the lock."
      : waiters[0]?.owner ? ["Next in the queue is ", el("bdi", null, waiters[0].owner), "."] : "The next in the queue gets the lock, once it fits.";
    this.#ask({ name, token: holder.fencing_token, lease: null }, "Break a lease", "Break the lease", "Why, for the holder and the history (may be left empty)",
      [el("bdi", null, holder.owner || "A holder without an owner"), ` loses its lease, which has the token ${holder.fencing_token}. `, ...[next].flat()]);
  }

  // evict asks about one that waits for a lock.
  evict({ name }, waiter) {
    this.#ask({ name, token: 0, lease: waiter.lease }, "Evict a waiter", "Evict the waiter", "Why, for the waiter (may be left empty)",
      [el("bdi", null, waiter.owner || "A waiter without an owner"), ` loses its place in the queue, number ${waiter.position}, and its request is refused, also when it comes again. Nobody else loses a place.`]);
  }

  #ask(what, title, go, why, text) {
    this.#what = what;
    this.#title.textContent = title;
    this.#go.textContent = go;
    this.#reasonLabel.textContent = why;
    this.#text.replaceChildren(...text);
    this.#label.replaceChildren("Type ", el("code", null, what.name), " to confirm it");
    this.#typed.value = this.#reason.value = "";
    this.#notice.value = "0";
    this.#notice.hidden = this.#noticeLabel.hidden = this.#consequence.hidden = what.lease !== null;
    this.#commands.open = false;
    this.#tell();
    this.#say("");
    this.#check();
    this.#dialog.showModal();
    this.#typed.focus();
  }

  // tell says what comes of what has been chosen, and the same as commands.
  #tell() {
    const { name, token, lease } = this.#what;
    const [notice, reason] = [Number(this.#notice.value), this.#reason.value.trim()];
    setText(this.#consequence, notice === 0
      ? "The lease ends at once. The holder learns of it at its next renewal and may work on until then: only a fence refuses its writes."
      : `The holder learns of it at its next renewal, or at once on a stream. It keeps the lock for ${plainSpan(notice)}, or until its present expiry if that is later, and can't renew beyond that.`);
    const keyed = currentKey() !== null;
    const lines = lease === null ? breakCommands(location.origin, name, token, notice, reason, keyed) : evictCommands(location.origin, name, lease, reason, keyed);
    this.#commands.replaceChildren(el("summary", null, "As a command"), ...lines.map((line) => command(line)));
  }

  #check() {
    this.#go.disabled = this.#typed.value !== this.#what.name;
  }

  #say(text) {
    setText(this.#problem, text);
    this.#problem.hidden = text === "";
  }

  async #act() {
    const what = this.#what;
    const { name, token, lease } = what;
    this.#go.disabled = true;
    this.#say("");
    const asks = () => this.#what === what && this.#dialog.open; // or it was cancelled, and asks about another
    try {
      const reason = this.#reason.value.trim();
      if (lease === null) await this.#api.breakLease(name, token, reason, Number(this.#notice.value));
      else await this.#api.evict(name, lease, reason);
      if (!asks()) return;
      this.#dialog.close();
      this.#onDone(name);
    } catch (error) {
      if (error.status === undefined) throw error; // a defect of the page: let it be seen
      if (!asks()) return;
      this.#say(refused(error));
      this.#check();
    }
  }
}

// refused says why it was not done, and whether that is known.
export function refused({ status, code, detail }) {
  if (code === "stale_token") return "This lease is over already.";
  if (code === "not_found") return "It is no longer waiting.";
  if (code === "conflict") return "It is no longer waiting: it has the lock, and its lease can be broken.";
  if (status === 401 || status === 403) return `You are not allowed to: that needs a key with the scope admin. The gateway says: \u201c${detail}\u201d.`;
  if (status === 0 || status >= 500) return `It is unknown whether that was done. Trying again does no harm. ${detail ? `The gateway says: \u201c${detail}\u201d.` : "The gateway did not answer."}`;
  return `The gateway says: \u201c${detail}\u201d.`;
}
