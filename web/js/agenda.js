// agenda.js: what is to be read next, and when. However many events come, it
// comes to four turns a second at most, of a few small requests or one list.

import { beyond, due, matches, shows } from "./shown.js";

// Without events, everything is read this often.
export const intervalMs = 2000;

// With events too everything is read now and then: should the store be out of
// reach nothing happens, and no event tells.
export const checkMs = 20_000;

// From the start of one turn to the next at least. The first waits a moment, as
// events come in groups: released here, granted there.
export const turnMs = 250;
const gatherMs = 20;

// A slow gateway is left in peace for as long as it took to answer.
const restForTurn = 1;

// When more names than this change in a turn, reading the list is cheaper; that
// is done no more often than this.
export const maxNames = 8;
export const listMs = 1000;

// More names than this are not told apart.
const maxChanged = 1000;

const endings = new Set(["released", "expired", "broken"]);

// Agenda collects what there is to do. A turn is {list, names, open, ends}:
// whether to read the list, which names alone, whether the lock that is open,
// and how leases have ended since the last turn, by name.
export class Agenda {
  #query;
  #changed = new Map(); // by name: {name, may, ended}
  #crowd = false; // there were too many of them
  #flood = false; // so many have changed that the next list tells, and no row before
  #open = false;
  #dues = new Map(); // when a lock is to be looked at for renewals, by name
  #turnAt = 0;
  #listAt = 0;
  #namesAt = Infinity;
  #dueAt = Infinity;
  #listRead = -Infinity;
  #held = false; // after a failure: until the list is due, nothing else is read

  constructor(query) {
    this.#query = query;
  }

  // change notes an event.
  change(what, now) {
    const { kind, name } = what;
    if (name === this.#query.name) this.#open = true;
    let entry = this.#changed.get(name);
    if (entry === undefined) {
      if (this.#changed.size === maxChanged) {
        this.#crowd = true;
        this.#changed.clear();
      }
      entry = { name, may: false, ended: null };
      this.#changed.set(name, entry);
    }
    if (endings.has(kind)) entry.ended = kind;
    else if (kind === "granted") entry.may ||= matches(this.#query.q, what);
    this.#namesAt = Math.min(this.#namesAt, now + gatherMs);
  }

  // readAll has everything read soon, but not within pause after the last time.
  readAll(now, pause = 0) {
    if (!this.#held || pause === 0) this.#listAt = Math.min(this.#listAt, Math.max(now, this.#listRead + pause));
  }

  // nextAt is when to plan again.
  get nextAt() {
    if (this.#held) return this.#listAt;
    return Math.max(this.#turnAt, Math.min(this.#listAt, this.#namesAt, this.#dueAt));
  }

  // plan returns the turn that is to start now, or null. list is what is shown.
  plan(list, now) {
    if (now < this.nextAt) return null;
    if (list === null || now >= this.#listAt) {
      const turn = { list: true, names: [], open: true, ends: this.#ends() };
      this.#listRead = now;
      this.#listAt = Infinity;
      this.#flood = false;
      this.#clear();
      return turn;
    }
    this.#lookForRenewals(now);
    const names = [...this.#changed.values()]
      .filter(({ name, may }) => shows(list, name) || (may && !beyond(list, name)))
      .map(({ name }) => name);
    if (this.#crowd || names.length > maxNames) {
      this.#flood = true;
      this.readAll(now, listMs);
    }
    const turn = { list: false, names: this.#flood ? [] : names, open: this.#open, ends: this.#ends() };
    this.#clear();
    if (turn.names.length > 0 || turn.open) return turn;
    this.#turnAt = now + turnMs;
    return null;
  }

  // done notes what a turn has read: the locks of the list, or those of the turn's
  // names. live says whether there are events.
  done(turn, locks, began, now, live) {
    this.#held = false;
    this.#turnAt = Math.max(began + turnMs, now + restForTurn * (now - began));
    if (turn.list) {
      this.#dues.clear();
      this.#listAt = Math.min(this.#listAt, now + (live ? checkMs : intervalMs));
    }
    for (const name of turn.names) this.#dues.delete(name);
    for (const lock of locks) this.#dues.set(lock.name, due(lock, now));
    this.#dueAt = Math.min(Infinity, ...this.#dues.values());
  }

  // failed has everything read after pause, and nothing before.
  failed(now, pause) {
    this.#held = true;
    this.#listAt = now + pause;
  }

  #lookForRenewals(now) {
    if (now < this.#dueAt) return;
    for (const [name, at] of this.#dues) {
      if (at > now) continue;
      this.#dues.delete(name);
      if (name === this.#query.name) this.#open = true;
      if (!this.#changed.has(name)) this.#changed.set(name, { name, may: false, ended: null });
    }
    this.#dueAt = Math.min(Infinity, ...this.#dues.values());
  }

  #ends() {
    return new Map([...this.#changed.values()].filter(({ ended }) => ended !== null).map(({ name, ended }) => [name, ended]));
  }

  #clear() {
    this.#changed.clear();
    this.#crowd = this.#open = false;
    this.#namesAt = Infinity;
  }
}
