// spans.js: how long things took lately, for quantiles. What is kept does not grow with how
// many there were: they are counted in classes, each nine percent longer than the one before.

const perDoubling = 8;

// classOf is the class of a span in milliseconds: 0 is none at all.
const classOf = (ms) => (ms < 1 ? 0 : 1 + Math.floor(perDoubling * Math.log2(ms)));

// spanOf is the middle of a class.
const spanOf = (of) => (of === 0 ? 0 : 2 ** ((of - 0.5) / perDoubling));

// Spans counts those of the last so many bars.
export class Spans {
  #bars; // the newest last, each a Map of counts by class
  #all = new Map();
  #count = 0;

  constructor(bars) {
    this.#bars = Array.from({ length: bars }, () => new Map());
  }

  add(ms) {
    if (!(ms >= 0)) return;
    const of = classOf(ms);
    for (const counts of [this.#bars.at(-1), this.#all]) counts.set(of, (counts.get(of) ?? 0) + 1);
    this.#count++;
  }

  // advance begins a bar, and forgets the oldest.
  advance() {
    const gone = this.#bars.shift();
    for (const [of, count] of gone) {
      const left = this.#all.get(of) - count;
      if (left === 0) this.#all.delete(of);
      else this.#all.set(of, left);
      this.#count -= count;
    }
    gone.clear();
    this.#bars.push(gone);
  }

  // quantile is how long the part q of them took at most, to some percent; null if there
  // were none.
  quantile(q) {
    if (this.#count === 0) return null;
    let below = 0;
    for (const of of [...this.#all.keys()].sort((a, b) => a - b)) {
      below += this.#all.get(of);
      if (below >= q * this.#count) return spanOf(of);
    }
    return null; // not reached
  }
}
