// stream.js: keeps a stream of events open. It comes back by itself: at once when
// a stream that worked has ended, later and later when it can't be had.

import { backoff, wait } from "./pause.js";
import { change, Parser } from "./sse.js";

// The gateway says something every 15 s. A stream without a word for this long
// is dead, or kept back by something on the way.
export const silenceMs = 40_000;

// How long a refusal that is no trouble of the moment stands: a gateway without
// events, one that does not let this page have them, a proxy that holds them back.
const refusedMs = 60_000;

// A stream that lasted this long has worked, and is asked for again at once.
const workedMs = 5000;

// Stream calls onOpen when events come from now on, onChange with each, onResync
// when some were missed, and onLost({again}) when no more come; again says that
// this is most likely the matter of a moment.
export class Stream {
  #connect;
  #on;
  #now;
  #random;
  #running = null;
  #retry = () => {};

  // connect asks for a stream: it resolves to its text in pieces, and fails with
  // an ApiError.
  constructor(connect, { onOpen, onChange, onResync, onLost, now, random = Math.random }) {
    this.#connect = connect;
    this.#on = { open: onOpen, change: onChange, resync: onResync, lost: onLost };
    this.#now = now;
    this.#random = random;
  }

  start() {
    if (this.#running !== null) return;
    this.#running = new AbortController();
    this.#loop(this.#running.signal);
  }

  stop() {
    this.#running?.abort();
    this.#running = null;
  }

  // retry ends a pause: the gateway has just been heard of.
  retry() {
    this.#retry();
  }

  async #loop(signal) {
    let failures = 0;
    while (!signal.aborted) {
      const began = this.#now();
      const { opened, error } = await this.#once(signal);
      if (signal.aborted) return;
      const worked = opened && !error.mute && this.#now() - began >= workedMs;
      failures = worked ? 0 : failures + 1;
      const { pause, early } = this.#pause(error, worked, failures);
      this.#on.lost({ again: worked });
      const cut = new AbortController();
      if (early) this.#retry = () => cut.abort();
      await wait(pause, AbortSignal.any([signal, cut.signal]));
      this.#retry = () => {};
    }
  }

  // pause says how long to wait, and whether a sign of life ends that early.
  #pause({ status, mute, retryAfterMs }, worked, failures) {
    if (mute) return { pause: refusedMs, early: false };
    // Many pages lose their streams at once when a gateway restarts.
    if (worked) return { pause: this.#random() * 500, early: false };
    if (status === 0 || status >= 500) return { pause: backoff(failures, retryAfterMs), early: true };
    return { pause: status === 429 ? backoff(failures, retryAfterMs) : refusedMs, early: false };
  }

  // once follows one stream to its end: whether it was ever open, and why it
  // ended. A mute one has never said a word.
  async #once(signal) {
    const connection = new AbortController();
    let silence = 0;
    let silent = false;
    let spoke = false;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => {
        silent = true;
        connection.abort();
      }, silenceMs);
    };
    let opened = false;
    try {
      const chunks = await this.#connect(AbortSignal.any([signal, connection.signal]));
      signal.throwIfAborted();
      opened = true;
      heard();
      this.#on.open();
      const parser = new Parser();
      for await (const text of chunks) {
        heard();
        spoke = true;
        for (const message of parser.push(text)) this.#tell(message);
      }
      return { opened, error: { status: 0 } };
    } catch (error) {
      if (silent || signal.aborted) return { opened, error: { status: 0, mute: !spoke } };
      if (error.status === undefined) throw error; // a defect of the page: let it be seen
      return { opened, error };
    } finally {
      clearTimeout(silence);
      connection.abort();
    }
  }

  #tell(message) {
    if (message.event === "resync") this.#on.resync();
    const what = change(message);
    if (what !== null) this.#on.change(what);
  }
}
