// source.js: where the page's data comes from. Today it asks every two seconds;
// a stream of events can take its place without the rest of the page noticing.

import { read } from "./clock.js";

export const intervalMs = 2000;
const firstRetryMs = 1000;
const longestRetryMs = 15_000;
const maxPage = 1000;

// A search may look through many names that don't match before a page is full.
// This bounds the requests of one turn; "show more" goes on from there.
const maxPagesATurn = 8;

// backoff is how long to wait after so many failures in a row: doubling, and
// never sooner than the gateway asked for, within reason.
export function backoff(failures, retryAfterMs = 0) {
  const doubled = Math.min(longestRetryMs, firstRetryMs * 2 ** Math.max(0, failures - 1));
  return Math.min(longestRetryMs, Math.max(doubled, retryAfterMs));
}

// collect reads wanted live locks, following cursors. A page may hold fewer
// than asked for, or none, and yet have a successor.
export async function collect(api, { q, wanted }, signal) {
  const locks = [];
  let cursor = "";
  for (let page = 0; page < maxPagesATurn; page++) {
    const limit = Math.min(maxPage, wanted - locks.length);
    const { sent, body } = await api.listPage({ q, limit, cursor }, signal);
    locks.push(...body.locks.map((lock) => readLock(lock, sent)));
    cursor = body.next_cursor ?? "";
    if (cursor === "" || locks.length >= wanted) break;
  }
  return { locks, more: cursor !== "" };
}

function readLock(lock, sent) {
  return { ...lock, holders: lock.holders.map((holder) => read(holder, sent)) };
}

// inspect reads the lock that is open. That the gateway refuses the name is an
// answer about the name, not a fault of the connection.
async function inspect(api, name, signal) {
  if (name === null) return null;
  try {
    const { sent, body } = await api.lock(name, signal);
    return { lock: readLock(body, sent) };
  } catch (error) {
    if (error.status === 400 || error.status === 404) return { problem: error.detail || error.message };
    throw error;
  }
}

// Source reads what is watched, one request after another, and reports
// {query, list, detail} to onData and an error with the pause to come to
// onFailure.
export class Source {
  #api;
  #on;
  #query = { q: "", wanted: 100, name: null };
  #running = null; // the AbortController of the loop under way
  #paused = true;
  #failures = 0;

  constructor(api, { onData, onFailure }) {
    this.#api = api;
    this.#on = { data: onData, failure: onFailure };
  }

  // watch says what to read from now on and reads it at once. Requests for what
  // was watched before are aborted.
  watch(query) {
    this.#query = query;
    this.refresh();
  }

  // refresh reads at once, without waiting for the next turn.
  refresh() {
    if (!this.#paused) this.#start();
  }

  // pause stops reading; resume goes on, at once.
  pause() {
    this.#paused = true;
    this.#running?.abort();
  }

  resume() {
    if (!this.#paused) return;
    this.#paused = false;
    this.#start();
  }

  #start() {
    this.#running?.abort();
    this.#running = new AbortController();
    this.#loop(this.#query, this.#running.signal);
  }

  async #loop(query, signal) {
    while (!signal.aborted) {
      let pause = intervalMs;
      try {
        const [list, detail] = await Promise.all([
          collect(this.#api, query, signal),
          inspect(this.#api, query.name, signal),
        ]);
        if (signal.aborted) return;
        this.#failures = 0;
        this.#on.data({ query, list, detail });
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === undefined) throw error; // a defect of the page: let it be seen
        pause = backoff(++this.#failures, error.retryAfterMs);
        this.#on.failure(error, pause);
      }
      await wait(pause, signal);
    }
  }
}

// wait resolves after ms, or at once when aborted.
function wait(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return void resolve();
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done, { once: true });
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    }
  });
}
