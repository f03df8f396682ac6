// detail.js: one lock, opened by its address: who holds it, with what lease and
// metadata, the last token and what the fence has seen.

import { instant, plainSpan, since, span } from "./clock.js";
import { Countdown } from "./countdown.js";
import { el, setText } from "./dom.js";

// fact is a term and what stands beside it.
const fact = (term, ...value) => el("div", { class: "fact" }, el("dt", null, term), el("dd", null, ...value));

// HolderCard shows one holder. It is kept for as long as the lease is held, so
// that its bar runs on; a renewal changes only the countdown.
class HolderCard {
  #countdown = new Countdown();
  #of = el("span", { class: "muted" });
  #held = el("span", { class: "muted" });
  #expires = el("time");
  #acquiredMark = 0;

  constructor(holder) {
    const acquired = el("time", { datetime: holder.acquired_at, title: instant(holder.acquired_at) },
      since(holder.acquired_at, holder.storeNow));
    const metadata = Object.entries(holder.metadata ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
    this.element = el("div", { class: "holder" },
      el("p", { class: "big" }, this.#countdown.text, " ", this.#of),
      this.#countdown.bar,
      el("dl", { class: "facts" },
        fact("Owner", holder.owner ? el("bdi", { class: "owner-text" }, holder.owner) : el("span", { class: "muted" }, "none given")),
        fact("Fencing token", el("span", { class: "digits" }, String(holder.fencing_token))),
        fact("Lease", el("span", { class: "digits" }, holder.lease)),
        fact("Held since", acquired, " ", this.#held),
        fact("Expires", this.#expires, el("span", { class: "muted" }, " unless renewed")),
        holder.hold > 1 ? fact("Hold", `${holder.hold} deep`) : null,
        holder.slot >= 0 ? fact("Slot", String(holder.slot)) : null,
      ),
      metadata.length === 0 ? null : el("div", null,
        el("h3", null, "Metadata"),
        el("dl", { class: "facts metadata" }, ...metadata.map(([key, value]) => el("div", { class: "fact" },
          el("dt", null, el("bdi", null, key)), el("dd", null, el("bdi", null, value))))),
      ),
    );
  }

  update(holder, now) {
    this.#acquiredMark = holder.acquiredMark;
    this.#countdown.set(holder.deadline, holder.ttl_ms, now);
    setText(this.#of, `left of ${plainSpan(holder.ttl_ms)}`);
    setText(this.#expires, since(holder.expires_at, holder.storeNow));
    this.#expires.dateTime = holder.expires_at;
    this.#expires.title = instant(holder.expires_at);
    this.tick(now);
  }

  tick(now) {
    this.#countdown.tick(now);
    setText(this.#held, `for ${span(now - this.#acquiredMark)}`);
  }
}

export class Detail {
  #root;
  #name = null;
  #cards = new Map();
  #title = el("h2", { id: "detail-name", class: "detail-name", tabindex: "-1" });
  #state = el("p", { class: "state", role: "status" });
  #holders = el("div", { class: "holders" });
  #fence = el("div");

  constructor(root, onClose) {
    this.#root = root;
    const close = el("button", { type: "button", class: "button close" },
      el("span", { class: "back", "aria-hidden": "true" }, "\u2190 "), "Close");
    close.addEventListener("click", onClose);
    root.append(el("div", { class: "detail-head" }, this.#title, close), this.#state, this.#holders, this.#fence);
  }

  // open shows the frame of a lock before anything is known of it.
  open(name) {
    if (this.#name === name) return;
    this.#name = name;
    this.#root.hidden = name === null;
    this.#title.textContent = name ?? "";
    this.#state.removeAttribute("data-state");
    this.#state.textContent = "Looking\u2026";
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
      this.#tell("problem", detail.problem);
      return;
    }
    const { lock } = detail;
    this.#tell(lock.held ? "held" : "free", words(lock));
    this.#updateHolders(lock.holders, now);
    this.#updateFence(lock);
  }

  tick(now) {
    for (const card of this.#cards.values()) card.tick(now);
  }

  #tell(state, text) {
    this.#state.dataset.state = state;
    setText(this.#state, text);
  }

  #updateHolders(holders, now) {
    const live = new Set(holders.map((holder) => holder.lease));
    for (const [lease, card] of this.#cards) {
      if (live.has(lease)) continue;
      card.element.remove();
      this.#cards.delete(lease);
    }
    for (const holder of holders) {
      let card = this.#cards.get(holder.lease);
      if (card === undefined) {
        card = new HolderCard(holder);
        this.#cards.set(holder.lease, card);
        this.#holders.append(card.element);
      }
      card.update(holder, now);
    }
  }

  #updateFence(lock) {
    const issued = lock.fence?.highest_issued ?? lock.fencing_token;
    const admitted = lock.fence?.highest_admitted ?? 0;
    const key = `${issued} ${admitted}`;
    if (this.#fence.dataset.key === key) return;
    this.#fence.dataset.key = key;
    const token = (value, none) => (value > 0
      ? el("span", { class: "digits" }, String(value))
      : el("span", { class: "muted" }, none));
    this.#fence.replaceChildren(
      el("h3", null, "Fence"),
      el("dl", { class: "facts" },
        fact("Last token issued", token(issued, "none known")),
        fact("Highest admitted", token(admitted, "none yet")),
      ),
    );
  }

  #clear() {
    this.#cards.clear();
    this.#holders.replaceChildren();
    this.#fence.replaceChildren();
    delete this.#fence.dataset.key;
  }
}

function words(lock) {
  if (!lock.held) return "Free";
  const mode = lock.mode === "shared" ? `shared by ${lock.holders.length}` : lock.mode;
  const waiting = lock.waiting > 0 ? `, ${lock.waiting} waiting` : "";
  return `Held, ${mode}${waiting}`;
}
