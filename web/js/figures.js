// figures.js: how much there is and how much happens. What happens is counted from the
// events that the page gets anyway: of all gateways, and no more than its key may see.

import { duration } from "./clock.js";
import { setText } from "./dom.js";
import { Spans } from "./spans.js";

// So many bars, each of so much time.
const bars = 60;
export const barMs = 2000;

// A rate is of the last so many bars that are over.
const over = 5;

const ended = { released: "released", expired: "lost", broken: "lost" };

// Rates counts events by the bar that they fall into, and how long waiting and holding took. What
// was not heard is unknown: null.
export class Rates {
  #counts = { granted: [], handed: [], released: [], lost: [] };
  #spans = { wait: new Spans(bars), hold: new Spans(bars) };
  #origin = null; // when the first bar began
  #bar = 0; // the one under way
  #hears = false;

  constructor() {
    for (const key of Object.keys(this.#counts)) this.#counts[key] = new Array(bars + 1).fill(null);
  }

  // begin says that all events are heard from now on; if they were before, some were missed.
  begin(now) {
    if (this.#origin === null) {
      this.#origin = now;
      this.#fill(0);
    } else {
      this.advance(now);
      this.#fill(null);
    }
    this.#hears = true;
  }

  // silence says that no more events are heard.
  silence(now) {
    this.advance(now);
    this.#fill(null);
    this.#hears = false;
  }

  // fill sets what is known of the bar under way.
  #fill(value) {
    for (const counts of Object.values(this.#counts)) counts[bars] = value;
  }

  add({ kind, took }, now) {
    if (!this.#hears) return;
    this.advance(now);
    const count = (key) => {
      if (this.#counts[key][bars] !== null) this.#counts[key][bars]++;
    };
    if (kind === "granted") {
      count("granted");
      if (took > 0) count("handed");
      this.#spans.wait.add(took);
    } else if (Object.hasOwn(ended, kind)) {
      count(ended[kind]);
      this.#spans.hold.add(took);
    }
  }

  // advance begins the bars that have come, and returns the number of the one under way.
  advance(now) {
    const bar = this.#origin === null ? 0 : Math.floor((now - this.#origin) / barMs);
    const gone = Math.min(bars + 1, bar - this.#bar);
    if (gone <= 0) return this.#bar;
    for (const counts of Object.values(this.#counts)) {
      counts.copyWithin(0, gone);
      counts.fill(this.#hears ? 0 : null, bars + 1 - gone);
    }
    for (let i = 0; i < Math.min(gone, bars); i++) for (const spans of Object.values(this.#spans)) spans.advance();
    this.#bar = bar;
    return bar;
  }

  // perSecond is how many came a second lately; null if that is not known.
  perSecond(key) {
    const known = this.#hears ? this.#counts[key].slice(bars - over, bars).filter((count) => count !== null) : [];
    if (known.length === 0) return null;
    return known.reduce((a, b) => a + b, 0) / (known.length * barMs / 1000);
  }

  // quantile is how long the part q of what came in the time of all bars took at most;
  // null if nothing came, or nothing is heard.
  quantile(key, q) {
    return this.#hears ? this.#spans[key].quantile(q) : null;
  }

  // counts are those of the bars that are over.
  counts(key) {
    return this.#counts[key].slice(0, bars);
  }
}

// line is an SVG path through values, in a box of a width and height, the greatest of which
// is most; null values are left out.
export function line(values, width, height, most = Math.max(1, ...values.filter((value) => value !== null))) {
  let pen = "M";
  return values.map((value, i) => {
    if (value === null) {
      pen = "M";
      return "";
    }
    const point = `${pen}${(i * width / (values.length - 1)).toFixed(1)} ${(height - 1 - value / most * (height - 2)).toFixed(1)}`;
    pen = "L";
    return point;
  }).join("");
}

// rate writes how many a second.
export function rate(perSecond) {
  if (perSecond === null) return "\u2013";
  return `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond).toLocaleString("en")}/s`;
}

// howLong writes a span that is known to some percent.
export function howLong(ms) {
  if (ms === null) return "\u2013";
  return ms < 1000 ? `${Math.round(ms)}\u00a0ms` : duration(ms);
}

// howMany writes a number of which there may be more. None that was found so far says nothing.
export function howMany({ count, more } = { count: null }) {
  return count === null || (count === 0 && more) ? "\u2013" : `${count.toLocaleString("en")}${more ? "+" : ""}`;
}

const [width, height] = [120, 24];

// Figures shows them.
export class Figures {
  #rates = new Rates();
  #root;
  #stale = false;
  #bar = 0; // the one under way when the figures were written
  #now = { held: undefined, waiting: undefined }; // {count, more} each, as far as it is known
  #then = Object.fromEntries(["held", "waiting", "wait", "hold"].map((key) => [key, new Array(bars).fill(null)]));

  constructor(root) {
    this.#root = root;
  }

  begin(now) {
    this.#rates.begin(now);
    this.#write();
  }

  // silence says that no more events come.
  silence(now) {
    this.#rates.silence(now);
    this.#now = { held: undefined, waiting: undefined }; // until it is counted again
    this.#write();
  }

  add(event, now) {
    this.#rates.add(event, now);
  }

  // count tells how many locks are held, and how many wait for them: {count, more} each,
  // undefined where it is not known.
  count(held, waiting) {
    this.#now = { held, waiting };
    this.#tell("held", howMany(held));
    this.#tell("waiting", howMany(waiting));
  }

  // age says whether what was counted may not be true any more.
  age(stale) {
    this.#stale = stale;
  }

  tick(now) {
    const bar = this.#rates.advance(now);
    const gone = Math.min(bars, bar - this.#bar);
    if (gone === 0) return;
    this.#bar = bar;
    const count = (of) => (this.#stale || of === undefined || of.more ? null : of.count);
    const p99 = (key) => this.#rates.quantile(key, 0.99);
    for (const [key, value] of Object.entries({ held: count(this.#now.held), waiting: count(this.#now.waiting), wait: p99("wait"), hold: p99("hold") })) {
      this.#then[key] = [...this.#then[key], ...new Array(gone - 1).fill(null), value].slice(-bars);
    }
    this.#write();
  }

  #tell(key, text) {
    setText(this.#root.getElementById(`figure-${key}`), text);
  }

  #draw(key, path) {
    this.#root.getElementById(`line-${key}`).setAttribute("d", path);
  }

  #write() {
    const rates = this.#rates;
    for (const key of ["granted", "handed", "released", "lost"]) this.#tell(key, rate(rates.perSecond(key)));
    for (const pair of [["granted", "handed"], ["released", "lost"]]) { // on one scale
      const most = Math.max(1, ...pair.flatMap((key) => rates.counts(key)));
      for (const key of pair) this.#draw(key, line(rates.counts(key), width, height, most));
    }
    for (const key of ["wait", "hold"]) {
      this.#tell(key, howLong(rates.quantile(key, 0.5)));
      this.#tell(`${key}-p99`, howLong(rates.quantile(key, 0.99)));
    }
    for (const [key, values] of Object.entries(this.#then)) this.#draw(key, line(values, width, height));
  }
}
