// detail.js: one lock, opened by its address: who holds it and who waits, what
// the fence has seen, and who held it before.

import { command, commandsFor } from "./commands.js";
import { el, setText } from "./dom.js";
import { History } from "./history.js";
import { digits, fact, Holders } from "./holders.js";
import { over, permits, taken, weighted } from "./holding.js";
import { current as currentKey } from "./key.js";
import { Waiters } from "./waiters.js";
import { fenceSays, overlong, why } from "./why.js";

// What becomes of the lock is read aloud no more often than this.
const sayMs = 5000;

// Sentences with times in them change this often.
const explainMs = 1000;

export class Detail {
  #root;
  #name = null;
  #title = el("h2", { id: "detail-name", class: "detail-name", tabindex: "-1" });
  #state = el("p", { class: "state" });
  #aloud = el("p", { class: "visually-hidden", role: "status" });
  #saidAt = -Infinity;
  #holders;
  #overlong = el("p", { class: "overlong" });
  #commands = el("details", { class: "commands", hidden: true });
  #lock = null;
  #grants = null;
  #till = null;
  #waiters;
  #history = new History();
  #advice = el("div");
  #fence = el("div");
  #stale = false;
  #explainedAt = 0;
  #words = "";

  // onBreak is called with a lock and the holder whose lease somebody wants to break, onEvict
  // with one and the waiter whom somebody wants to take out of the queue.
  constructor(root, { onClose, onBreak, onEvict }) {
    this.#root = root;
    this.#waiters = new Waiters((waiter) => onEvict(this.#lock, waiter));
    this.#holders = new Holders((holder) => onBreak(this.#lock, holder));
    const close = el("button", { type: "button", class: "button close" },
      el("span", { class: "back", "aria-hidden": "true" }, "\u2190 "), "Close");
    close.addEventListener("click", onClose);
    root.append(el("div", { class: "detail-head" }, this.#title, close), this.#state, this.#aloud, this.#overlong,
      this.#holders.element, this.#waiters.element, this.#history.element, this.#advice, this.#fence, this.#commands);
  }

  // open shows the frame of a lock before anything is known of it.
  open(name) {
    if (this.#name === name) return;
    this.#name = name;
    this.#root.hidden = name === null;
    this.#title.textContent = name ?? "";
    this.#state.removeAttribute("data-state");
    this.#state.textContent = "Looking\u2026";
    this.#aloud.textContent = "";
    this.#saidAt = -Infinity;
    this.#clear();
  }

  // focus moves to the name, so that a reader starts at the top of the detail.
  focus() {
    this.#title.focus({ preventScroll: true });
  }

  update(detail, now) {
    if (detail === null) return;
    if (detail.problem !== undefined) {
      this.#clear();
      this.#tell("problem", detail.problem, now);
      return;
    }
    const { lock, grants, storeNow } = detail;
    this.#tell(lock.held ? "held" : "free", words(lock), now);
    this.#holders.update(lock.holders, lock.holder_count, now);
    [this.#lock, this.#grants] = [lock, grants];
    this.#explain(now);
    this.#history.update(grants, storeNow, now);
    this.#updateAdvice(lock.advice ?? []);
    this.#updateFence(lock, grants);
    this.#updateCommands(lock);
  }

  // hold says until when a quarantine lets nobody take a lock; null: there is none.
  hold(till, now) {
    this.#till = till;
    this.#explain(now);
  }

  // breakOne asks about breaking the lease of the only holder, if there is one.
  breakOne() {
    const [button, ...others] = this.#holders.element.querySelectorAll(".break");
    if (others.length === 0) button?.click();
  }

  #explain(now) {
    if (this.#lock === null) return;
    this.#waiters.update(this.#lock, why(this.#lock, this.#till, now), now);
    const [holder] = this.#lock.holders;
    const text = this.#lock.holder_count === 1 ? overlong(holder, this.#grants, now) : null;
    this.#overlong.hidden = text === null;
    setText(this.#overlong, text ?? "");
  }

  tick(now) {
    this.#holders.tick(now);
    if (now - this.#explainedAt >= explainMs) {
      this.#explainedAt = now;
      this.#explain(now);
    }
    this.#waiters.tick(now);
    this.#history.tick(now);
    this.#say(now);
  }

  #tell(state, text, now) {
    this.#state.dataset.state = state;
    this.#words = text;
    this.#write(now);
  }

  // age says whether what is shown may not be true any more.
  age(stale, now) {
    if (stale === this.#stale) return;
    this.#stale = stale;
    if (this.#state.dataset.state) this.#write(now);
  }

  #write(now) {
    const asOfThen = this.#stale && this.#state.dataset.state !== "problem";
    setText(this.#state, asOfThen ? `${this.#words} when the gateway last answered` : this.#words);
    this.#say(now);
  }

  // say has the state read aloud: a lock that changes hands all the time would
  // otherwise never let a screen reader finish.
  #say(now) {
    const text = this.#state.textContent;
    if (!this.#state.dataset.state || this.#aloud.textContent === text || now - this.#saidAt < sayMs) return;
    this.#saidAt = now;
    this.#aloud.textContent = text;
  }

  // updateAdvice shows what there is to remark: below what changes all the time, so that it
  // moves nothing else that is read.
  #updateAdvice(advice) {
    const key = advice.map((a) => a.text).join("\n");
    if (this.#advice.dataset.key === key) return;
    this.#advice.dataset.key = key;
    this.#advice.replaceChildren(...(advice.length === 0 ? [] : [
      el("h3", null, "Advice"),
      el("ul", { class: "advice" }, ...advice.map((a) => el("li", { "data-code": a.code }, a.text))),
    ]));
  }

  #updateFence(lock, grants) {
    const issued = lock.fence?.highest_issued ?? lock.fencing_token;
    const admitted = lock.fence?.highest_admitted ?? 0;
    const says = fenceSays(lock, grants);
    const key = `${issued} ${admitted} ${says}`;
    if (this.#fence.dataset.key === key) return;
    this.#fence.dataset.key = key;
    const token = (value, none) => (value > 0 ? digits(value) : el("span", { class: "muted" }, none));
    this.#fence.replaceChildren(
      el("h3", null, "Fence"),
      el("dl", { class: "facts" },
        fact("Last token issued", token(issued, "none known")),
        ...(admitted > 0 ? [fact("Highest admitted", digits(admitted), el("span", { class: "muted says" }, says))] : []),
      ),
    );
  }

  // updateCommands keeps what is shown, and perhaps selected, for as long as it is right.
  #updateCommands(lock) {
    const tokens = lock.holders.slice(0, 1).map(({ fencing_token: token }) => token);
    const leases = lock.waiters.slice(0, 1).map(({ lease }) => lease);
    const key = JSON.stringify([lock.name, tokens, leases]);
    this.#commands.hidden = false;
    if (this.#commands.dataset.key === key) return;
    this.#commands.dataset.key = key;
    const { name } = lock;
    this.#commands.replaceChildren(el("summary", null, "Commands"),
      ...commandsFor(location.origin, name, tokens, leases, currentKey() !== null)
        .flatMap(([what, text]) => [what === "" ? null : el("p", { class: "muted" }, what), command(text, what || "Command")]).filter((part) => part !== null));
  }

  #clear() {
    [this.#lock, this.#grants] = [null, null];
    this.#overlong.hidden = this.#commands.hidden = true;
    delete this.#commands.dataset.key;
    this.#holders.clear();
    this.#waiters.clear();
    this.#history.clear();
    this.#advice.replaceChildren();
    delete this.#advice.dataset.key;
    this.#fence.replaceChildren();
    delete this.#fence.dataset.key;
  }
}

function words(lock) {
  if (!lock.held) return "Free";
  const limit = permits(lock.holders);
  if (limit !== null && weighted(lock.holders)) {
    const more = lock.holder_count > lock.holders.length ? " or more" : "";
    return `Held, shared by ${lock.holder_count}, ${taken(lock.holders)}${more} of ${limit} permits taken${over(lock.holders, lock.holder_count)}`;
  }
  if (limit !== null) return `Held, shared by ${lock.holder_count} of ${limit}${over(lock.holders, lock.holder_count)}`;
  return lock.holder_count > 1 ? `Held, shared by ${lock.holder_count}` : `Held, ${lock.mode}`;
}
