// countdown.js: the time a lease has left, as a bar and as text. Both change once a second: a
// bar that runs differs in every frame, and each frame costs time.

import { fraction, level, remaining, span } from "./clock.js";
import { el, setText } from "./dom.js";

// Network jitter moves a deadline by a few milliseconds at every answer. Less
// than this is not worth drawing the bar again.
const toleranceMs = 40;

export class Countdown {
  #fill = el("span", { class: "bar-fill" });
  #deadline = -Infinity;
  #drawn = -Infinity; // the deadline of which the bar was drawn
  #ttl = 0;
  #watched;

  // watched says whether somebody can see it; see watch.
  constructor(watched = true) {
    this.#watched = watched;
    this.bar = el("span", { class: "bar", "aria-hidden": "true", "data-level": "ok" }, this.#fill);
    this.text = el("span", { class: "left" });
  }

  // set takes the deadline, on performance.now(), and the TTL of an answer.
  set(deadline, ttl, now) {
    const moved = ttl !== this.#ttl || !(Math.abs(deadline - this.#drawn) < toleranceMs);
    this.#deadline = deadline;
    this.#ttl = ttl;
    this.#write(now, moved);
  }

  get deadline() {
    return this.#deadline;
  }

  // watch starts and stops what costs time: nobody sees a bar that is out of sight.
  watch(watched, now) {
    this.#watched = watched;
    this.tick(now);
  }

  tick(now) {
    if (this.#watched) this.#write(now, false);
  }

  // write draws the bar when the text changes, or the deadline has moved.
  #write(now, moved) {
    const left = remaining(this.#deadline, now);
    const text = left === Infinity ? "\u2026" : span(left);
    const state = level(this.#deadline, this.#ttl, now);
    if (!moved && this.text.textContent === text && this.bar.dataset.level === state) return;
    this.#drawn = this.#deadline;
    setText(this.text, text);
    if (this.bar.dataset.level !== state) this.bar.dataset.level = state;
    this.#fill.style.transform = `scaleX(${fraction(this.#deadline, this.#ttl, now).toFixed(3)})`;
  }
}
