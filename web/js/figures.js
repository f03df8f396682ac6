// figures.js: how much happens, counted from the events that the page gets anyway: of all
// gateways, and no more than its key may see.

import { setText } from "./dom.js";

// So many bars, each of so much time.
const bars = 60;
export const barMs = 2000;

// A figure is of the last so many bars that are over.
const over = 5;

const kinds = { granted: "granted", released: "released", expired: "lost", broken: "lost" };

// Rates counts events by the bar that they fall into.
export class Rates {
  #counts = { granted: [], released: [], lost: [] };
  #bar = null; // the one under way
  #first = null;

  constructor() {
    for (const key of Object.keys(this.#counts)) this.#counts[key] = new Array(bars + 1).fill(0);
  }

  // begin forgets what was counted: some was missed.
  begin(now) {
    for (const counts of Object.values(this.#counts)) counts.fill(0);
    this.#bar = this.#first = Math.floor(now / barMs);
  }

  add(kind, now) {
    const key = Object.hasOwn(kinds, kind) ? kinds[kind] : null;
    if (key === null || this.#bar === null) return;
    this.advance(now);
    this.#counts[key][bars]++;
  }

  // advance begins the bars that have come, and tells whether there was one.
  advance(now) {
    const bar = Math.floor(now / barMs);
    const gone = this.#bar === null ? 0 : Math.min(bars + 1, bar - this.#bar);
    if (gone <= 0) return false;
    for (const counts of Object.values(this.#counts)) {
      counts.copyWithin(0, gone);
      counts.fill(0, bars + 1 - gone);
    }
    this.#bar = bar;
    return true;
  }

  // perSecond is how many came a second lately; null while no bar is over.
  perSecond(key) {
    const known = this.#bar === null ? 0 : Math.min(over, this.#bar - this.#first);
    if (known === 0) return null;
    return this.#counts[key].slice(bars - known, bars).reduce((a, b) => a + b, 0) / (known * barMs / 1000);
  }

  // line is an SVG path through the bars that are over, in a box of a width and height.
  line(key, width, height) {
    const counts = this.#counts[key].slice(0, bars);
    const most = Math.max(1, ...counts);
    return counts.map((count, i) => `${i === 0 ? "M" : "L"}${(i * width / (bars - 1)).toFixed(1)} ${(height - 1 - count / most * (height - 2)).toFixed(1)}`).join("");
  }
}

// rate writes how many a second.
export function rate(perSecond) {
  if (perSecond === null) return "\u2013";
  return `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en")}/s`;
}

// Figures shows them.
export class Figures {
  #rates = new Rates();
  #nodes;

  constructor(root) {
    this.#nodes = Object.fromEntries(["granted", "released", "lost"].map((key) =>
      [key, { figure: root.getElementById(`figure-${key}`), line: root.getElementById(`line-${key}`) }]));
  }

  begin(now) {
    this.#rates.begin(now);
    this.#write();
  }

  add(kind, now) {
    this.#rates.add(kind, now);
  }

  tick(now) {
    if (this.#rates.advance(now)) this.#write();
  }

  #write() {
    for (const [key, { figure, line }] of Object.entries(this.#nodes)) {
      setText(figure, rate(this.#rates.perSecond(key)));
      line.setAttribute("d", this.#rates.line(key, 120, 24));
    }
  }
}
