// countdown.js: the time a lease has left, as a bar and as text. The bar runs on
// the compositor between answers: no script per frame, no drift from the text.

import { duration, fraction, level, remaining } from "./clock.js";
import { calm, el, setText } from "./dom.js";

// How long the bar takes to grow back when a lease was renewed.
const growMs = 350;

// Network jitter moves a deadline by a few milliseconds at every answer. Less
// than this is not worth a new animation.
const toleranceMs = 40;

const at = (part) => `translateX(${(part - 1) * 100}%)`;

export class Countdown {
  #fill = el("span", { class: "bar-fill" });
  #animation = null;
  #deadline = -Infinity;
  #drawn = -Infinity; // the deadline that the bar runs to
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
    const first = this.#ttl === 0;
    const shown = fraction(this.#deadline, this.#ttl, now);
    const moved = deadline - this.#drawn;
    const redraw = ttl !== this.#ttl || Math.abs(moved) >= toleranceMs;
    this.#deadline = deadline;
    this.#ttl = ttl;
    if (redraw) {
      this.#drawn = deadline;
      this.#run(shown, !first && moved > growMs, now);
    }
    this.#write(now);
  }

  get deadline() {
    return this.#deadline;
  }

  // watch starts and stops what costs time: a thousand bars that run out of sight
  // would bring the page to a halt.
  watch(watched, now) {
    if (watched === this.#watched) return;
    this.#watched = watched;
    if (this.#ttl !== 0) this.#run(0, false, now);
  }

  // tick writes the text. Where less motion is wanted it moves the bar too, in
  // steps.
  tick(now) {
    if (this.#watched) this.#write(now);
  }

  #write(now) {
    const left = remaining(this.#deadline, now);
    setText(this.text, left === Infinity ? "\u2026" : duration(left));
    const state = level(this.#deadline, this.#ttl, now);
    if (this.bar.dataset.level !== state) this.bar.dataset.level = state;
    if (this.#animation === null && this.#watched) this.#place(now);
  }

  #run(shown, grow, now) {
    this.#animation?.cancel();
    this.#animation = null;
    this.#fill.style.transform = "";
    if (!this.#watched) return;
    const left = remaining(this.#deadline, now);
    if (calm() || left === 0 || left === Infinity) {
      this.#place(now);
      return;
    }
    const frames = [{ transform: at(fraction(this.#deadline, this.#ttl, now)) }, { transform: at(0) }];
    if (grow && left > growMs) {
      frames[0] = { transform: at(shown), easing: "cubic-bezier(.2, .8, .2, 1)" };
      frames.splice(1, 0, {
        transform: at(fraction(this.#deadline, this.#ttl, now + growMs)),
        offset: growMs / left,
      });
    }
    this.#animation = this.#fill.animate(frames, { duration: left, fill: "forwards" });
  }

  #place(now) {
    // Whole seconds, so that the steps are few.
    const step = Math.ceil(now / 1000) * 1000;
    this.#fill.style.transform = at(fraction(this.#deadline, this.#ttl, step));
  }
}
