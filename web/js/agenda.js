// agenda.js: what is to be read next, and when. However many events come, it
// comes to four turns a second at most, of a few small requests or one list.

import { beyond, due, find, matches, overdue, shows, tells } from "./shown.js";

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

// Of a long list, so many names are kept that are not in view and may have come to belong to
// it: of more, the next round tells.
const maxUnsure = 100;

// A list of more locks than this is read in parts, and what happens to those that are
// not in view is taken from the events.
export const partLocks = 1000;

// inParts tells whether the list of a query is read part by part. A search is, for it may look
// through many names that don't match.
export const inParts = ({ q, wanted }) => q !== "" || wanted > partLocks;

// After a part of a long list the gateway is left in peace for so many times as long as
// it took, and for this long at least: longer once all is known, and events keep it so.
const restForPart = 4;
const restForKnownPart = 19;
const partMs = 100;

const endings = new Set(["released", "expired", "broken"]);

// Agenda collects what there is to do. A turn is {list, part, walk, names, open, ends, events}:
// whether to read the list (of a long one the first part), or its next part, or to take a step of
// the walk, which names
// alone, whether the lock that is open, how leases have ended since the last turn, by
// name, and of a long list all that has happened since.
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
  #long; // the list is read in parts
  #partAt = Infinity;
  #round = false; // a long list is being read, part by part
  #again = false; // what has been missed meanwhile is for the round that follows
  #events = [];
  #view = new Set(); // the names that are in view, of a long list
  #walkAt = Infinity;
  #walked = false; // the last that was read of the list or the walk was the walk's: they take turns, but a search goes first
  #restTill = 0; // no part of the list and no step of the walk before

  // further says that a list of which the beginning is known is read on.
  constructor(query, { further = false } = {}) {
    this.#query = query;
    this.#long = inParts(query);
    if (!further) return;
    this.#listAt = Infinity;
    this.#partAt = 0;
    this.#round = this.#open = true;
  }

  // walk says when the next step of the walk is to be taken, at the earliest.
  walk(at) {
    this.#walkAt = Math.max(at, this.#restTill);
  }

  // look says which names of a long list are in view: only these are kept exact.
  look(names, list, now) {
    if (!this.#long) return;
    const before = this.#view;
    this.#view = new Set(names);
    for (const name of this.#dues.keys()) if (!this.#view.has(name)) this.#dues.delete(name);
    for (const name of names) {
      const lock = before.has(name) ? undefined : find(list?.locks ?? [], name);
      if (lock !== undefined) this.#dues.set(name, overdue(lock, now) ? now : due(lock, now));
    }
    this.#dueAt = Math.min(Infinity, ...this.#dues.values());
  }

  // change notes an event.
  change(what, now) {
    const { kind, name } = what;
    if (name === this.#query.name) this.#open = true;
    if (!name.startsWith(this.#query.prefix ?? "")) return;
    if (this.#long) this.#note(what, now);
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
    else entry.may ||= matches(this.#query, what);
    this.#namesAt = Math.min(this.#namesAt, now + gatherMs);
  }

  // note keeps an event for a long list; of too many it keeps none, and has the list read.
  #note(what, now) {
    if (this.#events.length < maxChanged) {
      this.#events.push(what);
      return;
    }
    this.#events = [];
    this.readAll(now, checkMs);
  }

  // readAll has everything read soon, but not within pause after the last time. A round that
  // is under way goes on, or the end of a long list would not be read while much is missed;
  // without a pause, with its next part at once: that tells too whether the gateway is there.
  readAll(now, pause = 0) {
    if (this.#held && pause > 0) return;
    if (this.#round) {
      this.#again = true;
      if (pause === 0) this.#partAt = Math.min(this.#partAt, now);
    } else {
      this.#listAt = Math.min(this.#listAt, Math.max(now, this.#listRead + pause));
    }
  }

  // nextAt is when to plan again.
  get nextAt() {
    if (this.#held) return this.#listAt;
    return Math.max(this.#turnAt, Math.min(this.#listAt, this.#partAt, this.#walkAt, this.#namesAt, this.#dueAt));
  }

  // plan returns the turn that is to start now, or null. list is what is shown.
  plan(list, now) {
    if (now < this.nextAt) return null;
    if (list === null || now >= this.#listAt) {
      const turn = { list: true, part: false, walk: false, names: [], open: true, ends: this.#ends(), events: this.#events };
      this.#listRead = now;
      this.#listAt = this.#partAt = Infinity;
      this.#flood = this.#again = false;
      this.#clear();
      return turn;
    }
    this.#lookForRenewals(now);
    if (this.#long) return this.#planLong(now);
    const names = [...this.#changed.values()]
      .filter(({ name, may }) => shows(list, name) || (may && !beyond(list, name)))
      .map(({ name }) => name);
    if (this.#crowd || names.length > maxNames) {
      this.#flood = true;
      this.readAll(now, listMs);
    }
    const turn = { list: false, part: false, walk: now >= this.#walkAt, names: this.#flood ? [] : names, open: this.#open, ends: this.#ends(), events: [] };
    this.#clear();
    if (turn.walk || turn.names.length > 0 || turn.open) return turn;
    this.#turnAt = now + turnMs;
    return null;
  }

  // planLong plans a turn of a long list: its next part, and of what has changed the
  // first few that are in view, then of those that events don't tell enough of; the others
  // come in the next turn.
  #planLong(now) {
    const changed = [...this.#changed.values()];
    const others = tells(this.#query) ? [] : changed.filter(({ name, may }) => may && !this.#view.has(name)).slice(0, maxUnsure);
    const next = [...changed.filter(({ name }) => this.#view.has(name)), ...others];
    const names = next.map(({ name }) => name);
    const part = now >= this.#partAt && (this.#walked || this.#query.q !== "" || now < this.#walkAt);
    const turn = {
      list: false, part, walk: !part && now >= this.#walkAt, names: names.slice(0, maxNames), open: this.#open, ends: this.#ends(), events: this.#events,
    };
    if (turn.part) this.#partAt = Infinity;
    this.#clear();
    for (const { name, may } of next.slice(maxNames)) this.#changed.set(name, { name, may, ended: null });
    if (this.#changed.size > 0) this.#namesAt = now;
    if (turn.part || turn.walk || turn.names.length > 0 || turn.open || turn.events.length > 0) return turn;
    this.#turnAt = now + turnMs;
    return null;
  }

  // done notes what a turn has read: the locks of the list, or those of the turn's
  // names. live says whether there are events, further that the list goes on behind what
  // was read of it, known that all of it, and of the walk, has been read before.
  done(turn, locks, began, now, live, { further = false, known = false } = {}) {
    this.#held = false;
    this.#turnAt = Math.max(began + turnMs, now + restForTurn * (now - began));
    if (turn.list && !this.#long) this.#dues.clear();
    if (turn.list || turn.part || turn.walk) {
      this.#walked = turn.walk;
      this.#restTill = now + Math.max(partMs, (live && known ? restForKnownPart : restForPart) * (now - began));
      this.#walkAt = Math.max(this.#walkAt, this.#restTill);
      if (this.#partAt < Infinity) this.#partAt = Math.max(this.#partAt, this.#restTill);
    }
    if (turn.list || turn.part) {
      this.#round = further;
      if (further) this.#partAt = this.#restTill;
      else this.#listAt = Math.min(this.#listAt, now + (this.#again ? listMs : live ? checkMs : intervalMs));
    }
    for (const name of turn.names) this.#dues.delete(name);
    for (const lock of locks) if (!this.#long || this.#view.has(lock.name)) this.#dues.set(lock.name, due(lock, now));
    this.#dueAt = Math.min(Infinity, ...this.#dues.values());
  }

  // failed has everything read after pause, and nothing before.
  failed(now, pause) {
    this.#held = true;
    this.#round = false;
    this.#listAt = now + pause;
    this.#partAt = Infinity;
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
    this.#events = [];
    this.#crowd = this.#open = false;
    this.#namesAt = Infinity;
  }
}
