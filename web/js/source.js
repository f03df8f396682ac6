// source.js: where the page's data comes from. Events say what has changed, and
// only that is read again. While there are no events it asks every two seconds.

import { Agenda, listMs, partLocks } from "./agenda.js";
import { read } from "./clock.js";
import { backoff, wait } from "./pause.js";
import { apply, place, position, splice } from "./shown.js";
import { Stream } from "./stream.js";

const maxPage = 1000;

// The most locks that are known at once: they take memory, and reading them time of the
// gateway. Of more, these are the first in the order of the names.
export const mostLocks = 100_000;

// A search may look through many names that don't match before a page is full.
// This bounds the requests of one turn; "show more" goes on from there.
const maxPagesATurn = 8;

// page reads a page of the list. A store without queues refuses to look for what is waited
// for: there is none.
async function page(api, query, signal) {
  try {
    return await api.listPage(query, signal);
  } catch (error) {
    if (error.code === "unsupported_by_store" && query.filter?.waiting) return { sent: 0, body: { locks: [] } };
    throw error;
  }
}

// collect reads wanted live locks from a cursor on, and follows others. A page may hold
// fewer than asked for, or none, and yet have a successor.
export async function collect(api, { q, prefix, filter, wanted }, signal, cursor = "") {
  const locks = [];
  let total;
  for (let i = 0; i < maxPagesATurn; i++) {
    const limit = Math.min(maxPage, wanted - locks.length);
    const { sent, body } = await page(api, { q, prefix, filter, limit, cursor, total: cursor === "" && q === "" }, signal);
    total ??= body.total;
    locks.push(...body.locks.map((lock) => readLock(lock, sent)));
    cursor = body.next_cursor ?? "";
    if (cursor === "" || locks.length >= wanted) break;
  }
  return { locks, more: cursor !== "", cursor, total };
}

// one reads a single name as the list would have it: null if it is free or does
// not match. Of all names that begin with it, it is the first.
async function one(api, { q, filter }, name, signal) {
  const { sent, body } = await page(api, { q, prefix: name, filter, limit: 1 }, signal);
  return body.locks[0]?.name === name ? readLock(body.locks[0], sent) : null;
}

function readLock(lock, sent) {
  return {
    ...lock,
    delayedMark: lock.delayed_ms === undefined ? null : sent + lock.delayed_ms,
    holders: lock.holders.map((holder) => read(holder, sent)),
    waiters: (lock.waiters ?? []).map((waiter) => ({ ...waiter, since: sent - waiter.waiting_ms, turn: waiter.estimated_wait_ms === undefined ? null : sent + waiter.estimated_wait_ms })),
  };
}

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
// {query, list, detail, asking, ends} to onData, and an error with the pause to
// come to onFailure. detail is null if it was not read in this turn; asking says
// that there are no events; ends says how leases have ended, by name. list is {locks,
// more, reading}: more, that there are others behind the last; total, how many there are, undefined
// under a search; reading, that these are
// read too, part by part, for the first time. onGap hears that events begin, or that some were missed, onEvent each of them.
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
  #view = []; // the names that are in view
  #running = null; // the AbortController of the loop under way
  #paused = true;
  #failures = 0;
  #sleepsTill = -Infinity;
  #wake = () => {};

  constructor(api, { onData, onFailure, onGap = () => {}, onEvent = () => {}, now = () => performance.now() }) {
    this.#api = api;
    this.#on = { data: onData, failure: onFailure };
    this.#now = now;
    this.#stream = new Stream((signal) => api.events(signal), {
      onOpen: () => {
        this.#events = "open";
        this.#readAll(); // what happened before it was open is not told
        onGap();
      },
      onChange: (what) => {
        onEvent(what);
        this.#agenda.change(what, now());
        this.#look();
      },
      onResync: () => {
        this.#readAll(listMs);
        onGap();
      },
      onLost: ({ again }) => {
        const had = this.#events;
        this.#events = again ? "opening" : "refused";
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
    this.#agenda = new Agenda(this.#query);
    const { q, prefix = "", filter = {}, wanted } = this.#query;
    const of = JSON.stringify([q, prefix, filter]);
    // What is known already of a long list need not wait for all to be read again.
    if (of !== this.#listOf || wanted <= partLocks) this.#list = null;
    this.#listOf = of;
    this.#agenda.look(this.#view, this.#list, this.#now());
    this.#loop(this.#query, this.#agenda, this.#running.signal);
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
        agenda.done(turn, locks, began, this.#now(), this.#events === "open", { further: list.further, known: !list.reading });
        if (short) agenda.readAll(this.#now(), listMs);
        this.#on.data({ query, list, detail, asking: this.#events === "refused", ends: turn.ends });
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
    ]);
    const opened = detail?.lock ? [detail.lock] : [];
    if (turn.list) return { list, detail, locks: [...list.locks, ...opened], short: false };
    const before = list ?? this.#list;
    const placed = place(before, turn.names.map((other, i) => [other, known(other) ? opened.find(({ held }) => held) ?? null : rows[i]]), wanted);
    return {
      list: { ...before, locks: placed.locks, more: placed.more }, detail, locks: [...rows.filter((lock) => lock !== null), ...opened], short: placed.short,
    };
  }

  // readPart reads the list or, of a long one, the part whose turn it is, and puts it in
  // the place of what was known of the names that it spans.
  async #readPart(query, turn, signal) {
    const { wanted } = query;
    if (wanted <= partLocks) return collect(this.#api, query, signal);
    const [from, cursor] = turn.list ? ["", ""] : [this.#list.upTo, this.#list.cursor];
    const part = await collect(this.#api, { ...query, wanted: partLocks }, signal, cursor);
    const upTo = part.locks.at(-1)?.name ?? from;
    const locks = splice(this.#list?.locks ?? [], from, part.locks, part.more ? upTo : null);
    const full = locks.length >= wanted && position(locks, upTo) >= wanted - 1;
    if (full) locks.length = wanted;
    const further = part.more && !full;
    const knownTo = further ? this.#list?.knownTo ?? 0 : wanted; // so many have all been read once
    const reading = knownTo < wanted;
    const more = further ? reading || this.#list.more : part.more || full;
    return { locks, more, upTo, cursor: part.cursor, total: part.total ?? this.#list?.total, further, knownTo, reading };
  }

  async #sleep(agenda, signal) {
    const early = new AbortController();
    this.#wake = () => early.abort();
    this.#sleepsTill = agenda.nextAt;
    await wait(this.#sleepsTill - this.#now(), AbortSignal.any([signal, early.signal]));
    this.#sleepsTill = -Infinity;
  }
}
