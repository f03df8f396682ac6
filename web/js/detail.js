// detail.js: one lock, opened by its address: who holds it and who waits, what
// the fence has seen, and who held it before.

import { el, setText } from "./dom.js";
import { History } from "./history.js";
import { digits, fact, Holders } from "./holders.js";
import { permits } from "./holding.js";
import { Waiters } from "./waiters.js";

// What becomes of the lock is read aloud no more often than this.
const sayMs = 5000;

export class Detail {
  #root;
  #name = null;
  #title = el("h2", { id: "detail-name", class: "detail-name", tabindex: "-1" });
  #state = el("p", { class: "state" });
  #aloud = el("p", { class: "visually-hidden", role: "status" });
  #saidAt = -Infinity;
  #holders = new Holders();
  #waiters = new Waiters();
  #history = new History();
  #advice = el("div");
  #fence = el("div");
  #stale = false;
  #words = "";

  constructor(root, onClose) {
    this.#root = root;
    const close = el("button", { type: "button", class: "button close" },
      el("span", { class: "back", "aria-hidden": "true" }, "\u2190 "), "Close");
    close.addEventListener("click", onClose);
    root.append(el("div", { class: "detail-head" }, this.#title, close), this.#state, this.#aloud,
      this.#holders.element, this.#waiters.element, this.#history.element, this.#advice, this.#fence);
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
    this.#waiters.update(lock, now);
    this.#history.update(grants, storeNow, now);
    this.#updateAdvice(lock.advice ?? []);
    this.#updateFence(lock);
  }

  tick(now) {
    this.#holders.tick(now);
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

  #updateFence(lock) {
    const issued = lock.fence?.highest_issued ?? lock.fencing_token;
    const admitted = lock.fence?.highest_admitted ?? 0;
    const key = `${issued} ${admitted}`;
    if (this.#fence.dataset.key === key) return;
    this.#fence.dataset.key = key;
    const token = (value, none) => (value > 0 ? digits(value) : el("span", { class: "muted" }, none));
    this.#fence.replaceChildren(
      el("h3", null, "Fence"),
      el("dl", { class: "facts" },
        fact("Last token issued", token(issued, "none known")),
        ...(admitted > 0 ? [fact("Highest admitted", digits(admitted))] : []),
      ),
    );
  }

  #clear() {
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
  if (limit !== null) return `Held, shared by ${lock.holder_count} of ${limit}`;
  return lock.holder_count > 1 ? `Held, shared by ${lock.holder_count}` : `Held, ${lock.mode}`;
}
