// walk.js: what needs attention: the locks that somebody waits for, and those that are about to
// expire. Of a list that is not known as a whole the gateway looks for them, page by page, and
// events tell what becomes of them in between.

import { maxNames } from "./agenda.js";
import { about } from "./arrange.js";
import { one, page } from "./pages.js";
import { apply, find, place, position, splice } from "./shown.js";

// The gateway is asked for leases that end within this time: of those with a TTL of a minute
// or less that is all of which less than a third is left.
export const nearMs = 20_000;

// A walk takes so many pages at most.
const mostPages = 20;
const mostKept = 10_000;

// From the end of a round to the next, and from one look at single names to the next.
export const roundMs = 10_000;
const namesMs = 1000;

// What is shown as about to expire may have been renewed, of which no event tells: it is looked at
// this often.
const renewedMs = 2000;

// An event may be heard so long after an answer that tells of it already.
const lateMs = 1000;

// More events, or names to be looked at, are not kept: the next round tells.
const mostEvents = 1000;
const mostUnsure = 100;

const asked = { waiting: { waiting: true }, expiring: { expires_within_ms: nearMs } };
const nothing = () => ({ locks: [], more: true });

// Walk is that of a search and a prefix. exact says that the list is known as a whole, and each of
// its rows is kept exact: then the gateway is asked only for how long somebody has waited.
export class Walk {
  #scope;
  #exact = false;
  #found = { waiting: nothing(), expiring: nothing() };
  #queues = true; // the store has queues
  #phase = "waiting"; // of the round that is under way; null between two
  #cursor = "";
  #upTo = ""; // the last name that was found in this phase
  #pages = 0;
  #roundAt = Infinity; // while one is under way: unless another is to follow soon
  #ended = -Infinity; // the last round
  #namesAt = 0;
  #looked = false; // the last step looked at names
  #listFirst = false; // no page is asked for, as the list is being read
  #events = [];
  #unsure = new Set(); // the names of which events don't tell enough
  #readAt = new Map(); // when those that are shown as about to expire were read, by name
  known = false; // a round has come to its end

  constructor({ q, prefix }) {
    this.#scope = { q, prefix };
  }

  // change notes an event.
  change(what, now) {
    const { kind, name } = what;
    if (kind === "notice" || !name.startsWith(this.#scope.prefix)) return;
    this.#events.push(what);
    const waited = find(this.#found.waiting.locks, name);
    if ((waited !== undefined) !== (kind === "queued") || now < waited?.readMark + lateMs) this.#unsure.add(name);
    if (this.#events.length > mostEvents || this.#unsure.size > mostUnsure) {
      this.#events = [];
      this.#unsure.clear();
      this.again(now);
    }
  }

  // again has a round follow soon: something was missed.
  again(now) {
    if (this.#phase === null) this.#roundAt = Math.min(this.#roundAt, Math.max(now, this.#ended + namesMs));
    else this.#roundAt = now; // behind this one
  }

  // nextAt is when to take the next step, for a list that is known so far.
  nextAt(list, exact, now) {
    if (this.#exact && !exact) { // what is about to expire is not known from the list any more
      this.known = false;
      this.again(now);
    }
    this.#exact = exact;
    if (list === null || (exact && this.#found.waiting.locks.length === 0 && !list.locks.some(({ waiting }) => waiting > 0))) return Infinity;
    this.#listFirst = this.known && list.reading;
    if (this.#listFirst) return this.#namesDue(now);
    return this.#phase === null ? Math.min(this.#roundAt, this.#namesDue(now)) : now;
  }

  // namesDue is when single names are to be looked at.
  #namesDue(now) {
    const renewed = Math.min(Infinity, ...this.#readAt.values()) + renewedMs;
    return Math.max(this.#namesAt, this.#unsure.size > 0 ? now : renewed);
  }

  // step asks for a few names, or for the next page: by turns where both are due.
  async step(api, signal, now) {
    const page = !this.#listFirst && (this.#phase !== null || now >= this.#roundAt);
    this.#looked = now >= this.#namesDue(now) && !(page && this.#looked);
    if (this.#looked) return void await this.#names(api, signal, now);
    if (!page) return;
    if (this.#phase === null) this.#begin("waiting");
    await this.#page(api, signal, now);
  }

  #begin(phase) {
    this.#phase = phase;
    this.#cursor = this.#upTo = "";
    this.#pages = 0;
    this.#roundAt = Infinity;
  }

  async #page(api, signal, now) {
    this.#settle(now);
    const key = this.#phase;
    const { locks, cursor, queues } = await page(api, { ...this.#scope, filter: asked[key], cursor: this.#cursor }, signal);
    this.#doubt(locks);
    const over = cursor === "" || ++this.#pages === mostPages;
    const upTo = locks.at(-1)?.name ?? this.#upTo;
    const found = this.#found[key];
    const all = splice(found.locks, this.#upTo, locks, over ? null : upTo);
    this.#found[key] = { locks: all.slice(0, mostKept), more: all.length > mostKept || (over ? cursor !== "" : found.more) };
    if (key === "waiting") this.#queues = queues;
    [this.#cursor, this.#upTo] = [cursor, upTo];
    if (!over) return;
    const again = this.#roundAt < Infinity;
    if (key === "waiting" && !this.#exact) {
      this.#begin("expiring");
      if (again) this.#roundAt = now;
      return;
    }
    this.#phase = null;
    this.known = true;
    this.#ended = now;
    this.#roundAt = now + (again ? namesMs : roundMs);
  }

  // doubt leaves what happened while an answer came to another look at these names: the answer may
  // tell of it already.
  #doubt(locks) {
    this.#events = this.#events.filter(({ name }) => {
      const at = position(locks, name);
      if (locks[at]?.name !== name) return true;
      this.#unsure.add(name);
      return false;
    });
  }

  async #names(api, signal, now) {
    this.#settle(now);
    this.#namesAt = now + namesMs;
    const unsure = [...this.#unsure].slice(0, maxNames);
    const renewed = [...this.#readAt].filter(([, at]) => now >= at + renewedMs).map(([name]) => name).slice(0, maxNames - unsure.length);
    const look = (names, filter) => Promise.all(names.map(async (name) => [name, await one(api, { q: this.#scope.q, filter }, name, signal)]));
    const [waiting, expiring] = await Promise.all([look(unsure, asked.waiting), look(renewed, {})]);
    const meanwhile = new Set(this.#events.map(({ name }) => name)); // the answers may tell of it, or not
    for (const name of unsure) if (!meanwhile.has(name)) this.#unsure.delete(name);
    this.#events = this.#events.filter(({ name }) => !unsure.includes(name));
    for (const name of renewed) this.#readAt.set(name, now);
    for (const [key, rows] of [["waiting", waiting], ["expiring", expiring]]) {
      const { more } = this.#found[key];
      this.#found[key] = { ...place({ ...this.#found[key], more: false }, rows, mostKept), more };
    }
  }

  #settle(now) {
    if (this.#events.length === 0) return;
    for (const key of Object.keys(asked)) this.#found[key] = apply({ ...this.#found[key] }, this.#events, { ...this.#scope, filter: asked.waiting }, now);
    const { waiting } = this.#found;
    this.#found.waiting = { ...waiting, locks: waiting.locks.filter((lock) => lock.waiting > 0) };
    this.#events = [];
  }

  // report is what is known at now, beside a list: {waited, expiring, waiting, queues, known}, the first two
  // {locks, more}, waiting how many wait in all: {count, more}; known, that all has been looked through once.
  report(list, now) {
    this.#settle(now);
    let { waiting: waited, expiring } = this.#found;
    if (this.#exact) {
      const since = (lock) => ({ ...lock, waitedMark: find(this.#found.waiting.locks, lock.name)?.waitedMark ?? null });
      waited = { locks: list.locks.filter((lock) => lock.waiting > 0).map(since), more: false };
      expiring = { locks: list.locks, more: false };
    }
    const near = { locks: expiring.locks.filter((lock) => about(lock, now)), more: expiring.more };
    this.#follow(this.#exact ? [] : near.locks, now);
    return { waited, expiring: near, waiting: { count: waited.locks.reduce((sum, lock) => sum + lock.waiting, 0), more: waited.more }, queues: this.#queues, known: this.known || this.#exact };
  }

  // follow looks again at the first of those that are about to expire.
  #follow(locks, now) {
    const names = new Set(soonest(locks).map(({ name }) => name));
    for (const name of this.#readAt.keys()) if (!names.has(name)) this.#readAt.delete(name);
    for (const name of names) if (!this.#readAt.has(name)) this.#readAt.set(name, now);
  }
}

// So many are shown.
const most = 5;

const least = (holders, of) => Math.min(...holders.map(of));

// first comes to the first few by a number, the smallest first; equal ones stay in their order.
export function first(locks, key) {
  const few = [];
  for (const lock of locks) {
    const value = key(lock);
    let at = few.length;
    while (at > 0 && value < few[at - 1].value) at--;
    if (at === most) continue;
    few.splice(at, 0, { lock, value });
    if (few.length > most) few.pop();
  }
  return few.map(({ lock }) => lock);
}

const soonest = (locks) => first(locks, ({ holders }) => least(holders, ({ deadline }) => deadline));

// leaders comes to what is shown of a report: the locks that are waited for longest, those that have
// been held longest while others wait, and those that expire first.
export function leaders({ waited, expiring }) {
  return {
    waited: first(waited.locks.filter(({ waitedMark }) => waitedMark !== null), ({ waitedMark }) => waitedMark),
    stuck: first(waited.locks.filter(({ holders }) => holders.length > 0), ({ holders }) => least(holders, ({ acquiredMark }) => acquiredMark)),
    expiring: soonest(expiring.locks),
  };
}
