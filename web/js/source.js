// source.js: where the page's data comes from. Events say what has changed, and
// only that is read again. While there are no events it asks every two seconds.

import { Agenda, inParts, listMs, partLocks } from "./agenda.js";
import { examinedPerPage, one, page, readLock } from "./pages.js";
import { backoff, wait } from "./pause.js";
import { apply, place, position, splice } from "./shown.js";
import { Stream } from "./stream.js";
import { Walk } from "./walk.js";

// The most locks that are known at once: they take memory, and reading them time of the
// gateway. Of more, these are the first in the order of the names.
export const mostLocks = 100_000;

// inspect reads the lock that is open. That the gateway refuses the name is an
// answer about the name, not a fault of the connection.
async function inspect(api, name, signal) {
  if (name === null) return null;
  try {
    const [{ sent, at, body }, grants] = await Promise.all([api.lock(name, signal), past(api, name, signal)]);
    const lock = readLock(body, sent);
    return { lock, grants, storeNow: lock.holders[0]?.storeNow ?? at };
  } catch (error) {
    if (error.status === 400 || error.status === 404) return { problem: error.detail || error.message };
    throw error;
  }
}

// past reads the history of a lock: null where the gateway has none.
async function past(api, name, signal) {
  try {
    const { sent, at, body } = await api.history(name, signal);
    // The store's clock at the answer: to the millisecond if somebody holds the lock.
    const held = body.grants.find(({ outcome }) => outcome === "held");
    const storeNow = held === undefined ? at : Date.parse(held.acquired_at) + held.held_ms;
    return body.grants.map((grant) => {
      const age = grant.outcome === "held" ? grant.held_ms : storeNow - Date.parse(grant.acquired_at);
      return { ...grant, since: sent - (Number.isFinite(age) ? Math.max(age, grant.held_ms) : grant.held_ms) };
    });
  } catch (error) {
    if (error.status === 400 || error.status === 404) return null;
    throw error;
  }
}

// Source reads what is watched, one turn after another, and reports
// {query, list, detail, attention, asking, ends} to onData, and an error with the pause to
// come to onFailure. detail is null if it was not read in this turn; attention is the walk's report;
// asking says that there are no events; ends says how leases have ended, by name. list is {locks, more, total,
// reading, looked}: more, that there are others behind the last; total, how many names with the prefix are
// held; reading, that the others are read too, part by part, for the first time; looked, how many names
// have been looked at for that. onGap hears that events begin, or that some were missed, onEvent each of
// them, onSilence that no more come.
export class Source {
  #api;
  #on;
  #now;
  #stream;
  #events = "opening"; // or "open", "refused"
  #query = { q: "", wanted: 100, name: null };
  #agenda = new Agenda(this.#query);
  #list = null; // of this query; null until it has been read
  #listOf = ""; // the search, prefix and filter that it answers
  #walk = null;
  #walkOf = ""; // the search and prefix of the walk
  #view = []; // the names that are in view
  #running = null; // the AbortController of the loop under way
  #paused = true;
  #failures = 0;
  #sleepsTill = -Infinity;
  #wake = () => {};

  constructor(api, { onData, onFailure, onGap = () => {}, onEvent = () => {}, onSilence = () => {}, now = () => performance.now() }) {
    this.#api = api;
    this.#on = { data: onData, failure: onFailure, silence: onSilence };
    this.#now = now;
    this.#stream = new Stream((signal) => api.events(signal), {
      onOpen: () => {
        this.#events = "open";
        this.#readAll(); // what happened before it was open is not told
        this.#walk?.again(now());
        onGap();
      },
      onChange: (what) => {
        onEvent(what);
        this.#agenda.change(what, now());
        this.#walk?.change(what, now());
        this.#planWalk();
        this.#look();
      },
      onResync: () => {
        this.#readAll(listMs);
        this.#walk?.again(now());
        onGap();
      },
      onLost: ({ again }) => {
        const had = this.#events;
        this.#events = again ? "opening" : "refused";
        onSilence();
        if (had !== this.#events) this.#readAll(); // is the gateway still there?
      },
      now,
    });
  }

  // watch says what to read from now on and reads it at once. Requests for what
  // was watched before are aborted.
  watch(query) {
    this.#query = query;
    this.refresh();
  }

  // look says which names are in view: of a long list only these are kept exact.
  look(names) {
    this.#view = names;
    this.#agenda.look(names, this.#list, this.#now());
    this.#look();
  }

  // refresh reads at once, without waiting for the next turn.
  refresh() {
    if (this.#paused) return;
    this.#stream.retry();
    this.#start();
  }

  // pause stops reading and listening; resume goes on, at once.
  pause() {
    this.#paused = true;
    this.#running?.abort();
    this.#stream.stop();
    this.#events = "opening";
    this.#on.silence();
  }

  resume() {
    if (!this.#paused) return;
    this.#paused = false;
    this.#stream.start();
    this.#start();
  }

  #readAll(pause = 0) {
    this.#agenda.readAll(this.#now(), pause);
    this.#look();
  }

  // look wakes the loop if there is something to do earlier than it thinks.
  #look() {
    if (this.#agenda.nextAt < this.#sleepsTill) this.#wake();
  }

  #start() {
    this.#running?.abort();
    this.#running = new AbortController();
    const { q, prefix = "", filter = {}, wanted } = this.#query;
    const of = JSON.stringify([q, prefix, filter]);
    // What is known already of a long list need not wait for all to be read again.
    if (of !== this.#listOf || !inParts(this.#query)) this.#list = null;
    this.#listOf = of;
    const walkOf = JSON.stringify([q, prefix]);
    if (walkOf !== this.#walkOf) this.#walk = new Walk({ q, prefix });
    this.#walkOf = walkOf;
    this.#agenda = new Agenda(this.#query, { further: this.#list !== null && this.#list.cursor !== "" && this.#list.knownTo < wanted });
    this.#agenda.look(this.#view, this.#list, this.#now());
    this.#planWalk();
    this.#loop(this.#query, this.#agenda, this.#running.signal);
  }

  // exact tells whether the list is known as a whole, and each of its rows is kept exact.
  #exact() {
    const { filter = {} } = this.#query;
    return this.#list !== null && !this.#list.more && !inParts(this.#query) && Object.keys(filter).length === 0;
  }

  #planWalk() {
    this.#agenda.walk(this.#walk === null ? Infinity : this.#walk.nextAt(this.#list, this.#exact(), this.#now()));
  }

  async #loop(query, agenda, signal) {
    while (!signal.aborted) {
      const began = this.#now();
      const turn = agenda.plan(this.#list, began);
      if (turn !== null && turn.events.length > 0 && this.#list !== null) this.#list = apply(this.#list, turn.events, query, began);
      if (turn === null) {
        await this.#sleep(agenda, signal);
        continue;
      }
      try {
        const { list, detail, locks, short } = await this.#read(query, turn, signal);
        if (signal.aborted) return;
        if (this.#failures > 0) this.#stream.retry(); // a sign of life
        this.#failures = 0;
        this.#list = list;
        agenda.done(turn, locks, began, this.#now(), this.#events === "open", { further: list.further, known: this.#walk.known && !list.reading });
        if (short) agenda.readAll(this.#now(), listMs);
        this.#planWalk();
        this.#on.data({ query, list, detail, attention: this.#walk.report(list, this.#now()), asking: this.#events === "refused", ends: turn.ends });
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === undefined) throw error; // a defect of the page: let it be seen
        const pause = backoff(++this.#failures, error.retryAfterMs);
        agenda.failed(this.#now(), pause);
        this.#on.failure(error, pause);
      }
    }
  }

  // read makes the requests of a turn: the list as it is then, the open lock if
  // it was read, all locks that were, and whether the page has got short.
  async #read(query, turn, signal) {
    const { q, filter = {}, wanted, name } = query;
    // Without a search and filter the answer about the open lock serves its row too.
    const known = (other) => turn.open && q === "" && Object.keys(filter).length === 0 && other === name;
    const [list, rows, detail] = await Promise.all([
      turn.list || turn.part ? this.#readPart(query, turn, signal) : null,
      Promise.all(turn.names.map((other) => (known(other) ? null : one(this.#api, query, other, signal)))),
      turn.open ? inspect(this.#api, name, signal) : null,
      turn.walk ? this.#walk.step(this.#api, signal, this.#now()) : null,
    ]);
    const opened = detail?.lock ? [detail.lock] : [];
    if (turn.list) return { list, detail, locks: [...list.locks, ...opened], short: false };
    const before = list ?? this.#list;
    const found = turn.names.map((other, i) => [other, known(other) ? opened.find(({ held }) => held) ?? null : rows[i]]);
    const { locks, more, short, over } = place(before, found, q === "" ? wanted : mostLocks);
    return {
      list: { ...before, locks, more, ...over && !before.further ? { cursor: "" } : {} }, // once all is read, what is behind the last is not behind the cursor any more
      detail, locks: [...rows.filter((lock) => lock !== null), ...opened], short: short && !inParts(query),
    };
  }

  // readPart reads the list or, of one that is read in parts, the part whose turn it is, and puts it in
  // the place of what was known of the names that it spans.
  async #readPart(query, turn, signal) {
    const { q, prefix, filter = {}, wanted } = query;
    const [from, cursor, looked] = turn.list ? ["", "", 0] : [this.#list.upTo, this.#list.cursor, this.#list.looked];
    const selects = q !== "" || Object.keys(filter).length > 0;
    const limit = cursor === "" ? Math.min(partLocks, wanted) : partLocks;
    const part = await page(this.#api, { q, prefix, filter, limit, cursor, total: cursor === "" }, signal);
    const end = part.cursor === "";
    const upTo = part.locks.at(-1)?.name ?? from;
    const locks = inParts(query) ? splice(this.#list?.locks ?? [], from, part.locks, end ? null : upTo) : part.locks;
    const full = locks.length >= wanted && position(locks, upTo) >= wanted - 1;
    const most = q === "" ? wanted : mostLocks; // a search shows all that an answer has
    const over = full && locks.length > most;
    if (over) locks.length = most;
    const further = !end && !full;
    const knownTo = further ? this.#list?.knownTo ?? 0 : wanted; // so many have all been read once
    const reading = knownTo < wanted;
    const more = further ? reading || this.#list.more : !end || over;
    return {
      locks, more, upTo, cursor: part.cursor, total: part.total ?? this.#list?.total, further, knownTo, reading,
      looked: looked + (selects && part.locks.length < limit ? limit * examinedPerPage : part.locks.length),
    };
  }

  async #sleep(agenda, signal) {
    const early = new AbortController();
    this.#wake = () => early.abort();
    this.#sleepsTill = agenda.nextAt;
    await wait(this.#sleepsTill - this.#now(), AbortSignal.any([signal, early.signal]));
    this.#sleepsTill = -Infinity;
  }
}
