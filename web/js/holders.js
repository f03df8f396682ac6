// holders.js: who holds the lock that is open. One holder is shown at large;
// several as a list, each opening to the same facts.

import { duration, instant, plainSpan, since, span } from "./clock.js";
import { Countdown } from "./countdown.js";
import { el, owner, reconcile, setText } from "./dom.js";
import { slots } from "./holding.js";

// More holders than this are only counted.
const maxShown = 50;

// fact is a term and what stands beside it.
export const fact = (term, ...value) => el("div", { class: "fact" }, el("dt", null, term), el("dd", null, ...value));

export const digits = (value) => el("span", { class: "digits" }, String(value));

// Holder shows one holder. It is kept for as long as the lease is held, so that
// its bar runs on; a renewal changes only the countdown.
class Holder {
  #countdown = new Countdown();
  #of = el("span", { class: "muted" });
  #held = el("span", { class: "muted" });
  #expires = el("time");
  #unless = el("span", { class: "muted" });
  #renewed = el("time");
  #renewedMark = null;
  #renewer = el("span", { class: "muted" });
  #notice = el("p", { class: "notice", hidden: true });
  #breaks = el("span", { class: "breaks" });
  #why = el("bdi");
  #breaksMark = null;
  #mode = el("span");
  #acquiredMark = 0;

  #holder = null;

  // onBreak is called with the holder whose lease somebody wants to break.
  constructor(holder, alone, onBreak) {
    const button = el("button", { type: "button", class: "button break" }, "Break\u2026");
    button.addEventListener("click", () => onBreak(this.#holder));
    this.#notice.append(el("strong", null, "Given notice"), ": ", this.#breaks, this.#why);
    const facts = [this.#notice, ...this.#facts(holder, alone ? "h3" : "h4"), button];
    if (alone) {
      this.element = el("div", { class: "holder" },
        el("p", { class: "big" }, this.#countdown.text, " ", this.#of), this.#countdown.bar, ...facts);
      return;
    }
    this.element = el("details", { class: "holder one-of-many" },
      el("summary", null,
        el("span", { class: "who" }, owner(holder.owner)),
        holder.slot >= 0 ? el("span", { class: "slot" }, slots(holder)) : null,
        el("span", { class: "countdown" }, this.#countdown.bar, this.#countdown.text)),
      el("p", { class: "muted" }, this.#of),
      ...facts);
  }

  #facts(holder, heading) {
    const acquired = el("time", { datetime: holder.acquired_at, title: instant(holder.acquired_at) },
      since(holder.acquired_at, holder.storeNow));
    const metadata = Object.entries(holder.metadata ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
    return [
      el("dl", { class: "facts" },
        fact("Owner", owner(holder.owner)),
        fact("Fencing token", digits(holder.fencing_token)),
        fact("Lease", digits(holder.lease)),
        fact("Mode", this.#mode),
        fact("Held since", acquired, " ", this.#held),
        fact("Last renewed", this.#renewed, this.#renewer),
        fact("Ends", this.#expires, this.#unless),
        holder.hold > 1 ? fact("Hold", `${holder.hold} deep`) : null,
      ),
      metadata.length === 0 ? null : el("div", null,
        el(heading, null, "Metadata"),
        el("dl", { class: "facts metadata" }, ...metadata.map(([key, value]) => el("div", { class: "fact" },
          el("dt", null, el("bdi", null, key)), el("dd", null, el("bdi", null, value))))),
      ),
    ].filter((part) => part !== null);
  }

  update(holder, now) {
    this.#holder = holder;
    this.#acquiredMark = holder.acquiredMark;
    this.#renewedMark = holder.renewedMark;
    this.#renewed.title = holder.renewedMark === null ? "" : instant(holder.renewedAt);
    this.#breaksMark = holder.breaksMark;
    this.#notice.hidden = holder.breaksMark === null;
    setText(this.#why, holder.break_reason ? ` ${holder.break_reason}` : "");
    setText(this.#renewer, holder.attached ? " by its gateway: attached to a stream" : "");
    this.#countdown.set(holder.deadline, holder.ttl_ms, now);
    setText(this.#of, `left of ${plainSpan(holder.ttl_ms)}`);
    setText(this.#mode, `${holder.mode}${holder.limit ? `, at most ${holder.limit}` : ""}${holder.slot >= 0 ? `, ${slots(holder)}` : ""}`);
    setText(this.#unless, holder.left ? ": its holder has left" : " unless renewed");
    setText(this.#expires, since(holder.expires_at, holder.storeNow));
    this.#expires.dateTime = holder.expires_at;
    this.#expires.title = instant(holder.expires_at);
    this.tick(now);
  }

  tick(now) {
    this.#countdown.tick(now);
    if (this.#breaksMark !== null) setText(this.#breaks, breaks(this.#breaksMark, now));
    setText(this.#held, `for ${span(now - this.#acquiredMark)}`);
    setText(this.#renewed, this.#renewedMark === null ? "never" : `${duration(now - this.#renewedMark)} ago`);
  }
}

// breaks says when a lease is broken of which notice was given.
function breaks(at, now) {
  return at > now ? `the lease is broken in at most ${span(at - now + 999)}.` : "the lease is about to be broken.";
}

// Holders is the section of the holders.
export class Holders {
  #views = new Map();
  #title = el("h3");
  #body = el("div", { class: "holders" });
  #rest = el("p", { class: "muted rest" });
  #alone = true;

  #onBreak;

  constructor(onBreak) {
    this.#onBreak = onBreak;
    this.element = el("div", null, this.#title, this.#body, this.#rest);
    this.update([], 0, 0);
  }

  // update shows holders, of which there are count.
  update(holders, count, now) {
    const alone = count <= 1;
    if (alone !== this.#alone) this.clear();
    this.#alone = alone;
    this.#title.hidden = alone;
    setText(this.#title, `${count} holders`);
    // The depth of a hold changes the facts.
    reconcile(this.#body, this.#views, holders.slice(0, maxShown), ({ lease, hold, mode }) => `${lease} ${hold} ${mode}`,
      (holder) => new Holder(holder, alone, this.#onBreak), (view, holder) => view.update(holder, now));
    const shown = Math.min(holders.length, maxShown);
    this.#rest.hidden = count <= shown;
    setText(this.#rest, `and ${count - shown} more`);
  }

  tick(now) {
    for (const view of this.#views.values()) view.tick(now);
  }

  clear() {
    this.#views.clear();
    this.#body.replaceChildren();
    this.#title.hidden = this.#rest.hidden = true;
  }
}
