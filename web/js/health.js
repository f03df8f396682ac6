// health.js: what is known of the store itself: what about it endangers the
// promises of locks, and whether it is in quarantine. It is asked for gently, as it
// seldom changes.

import { span } from "./clock.js";

export const everyMs = 30_000;

// From one look to the next at least, whatever happens.
export const restMs = 1000;

// A quarantine that should have ended is looked at again after this.
const graceMs = 500;

// read turns the checks of an answer that came at now into {dangers, till, refused, refusal, store}:
// what endangers a promise, and when a quarantine ends at the latest, null if there
// is none. The same fault of several servers is one danger.
//
// refusal: {detail, remedy} if the store refuses the gateway, null if not.
//
// refused: the gateway grants nothing because of a danger (it is strict): it is not
// ready, though all else that it needs is there.
export function read(body, now) {
  const dangers = new Map();
  let till = null;
  let refusal = null;
  for (const check of body.checks) {
    if (check.name === "store" && !check.ok && check.remedy) refusal = { detail: brief(check.detail ?? ""), remedy: brief(check.remedy) };
    if (check.name === "quarantine" && !check.ok && check.remaining_ms > 0) till = now + check.remaining_ms;
    if (check.ok || !check.promise) continue;
    const { name, promise, detail = "", remedy = "", node } = check;
    const key = JSON.stringify([name, promise, detail, remedy]);
    const danger = dangers.get(key) ?? { key, promise, detail, remedy, nodes: [] };
    if (node) danger.nodes.push(node);
    dangers.set(key, danger);
  }
  const sound = (name) => body.checks.every((check) => check.name !== name || check.ok);
  const refused = body.code === "unavailable" && dangers.size > 0 && sound("store") && sound("accepting");
  return { dangers: [...dangers.values()], till, refused, refusal, store: { kind: String(body.store ?? ""), took: body.checks.find(({ name }) => name === "store")?.took_ms ?? null, looks: examined(body) } };
}

// examined is how many things about the store were looked at.
const examined = ({ checks }) => checks.filter(({ name }) => !["store", "accepting", "quarantine"].includes(name)).length;

const most = 400; // of a text that quotes a server

function brief(text) {
  return text.length > most ? `${text.slice(0, most)}\u2026` : text;
}

const promised = { P1: "One live lease", P2: "Growing tokens" };

// endangered says in words what a danger is to.
export function endangered(promise) {
  return promise.split(", ").map((p) => promised[p] ?? p).join(", ");
}

// sentence makes one of a detail.
export function sentence(text) {
  return text === "" ? "" : `${text[0].toUpperCase()}${text.slice(1)}.`;
}

// summary says how much is in danger, in words that don't change while the
// dangers don't, and what comes of it.
export function summary(dangers, refused = false) {
  if (dangers.length === 0) return "";
  const much = dangers.length === 1
    ? "The setup of the store endangers what locks promise."
    : `${dangers.length} findings about the store endanger what locks promise.`;
  return refused ? `${much} This gateway grants nothing until this is put right.` : much;
}

// condition says how the store is, in sentences that don't change while it does not.
export function condition({ dangers, till, refusal, store: { kind, took, looks } }) {
  const parts = [`The store${kind === "" ? "" : ` (${kind})`} ${took === null ? "does not answer" : `answered in ${took || "less than 1"} ms`}.`];
  if (refusal !== null) parts.push("It refuses this gateway.");
  if (till !== null) parts.push("It is in quarantine: no new leases are granted.");
  const checks = looks === 1 ? "1 check" : `${looks} checks`;
  parts.push(dangers.length > 0 ? "The dangers are listed above." : looks > 0 ? `${checks} of its setup found no danger to the locks.` : "Its setup has not been checked yet.");
  return parts.join(" ");
}

// left says how long a quarantine goes on.
export function left(till, now) {
  return till > now ? `For at most ${span(till - now + 999)}.` : "Any moment now.";
}

// held says how long nothing new is granted, for a place where a lock would be
// taken.
export function held(till, now) {
  return till > now ? `No new leases are granted for at most another ${span(till - now + 999)}.` : "New leases are granted any moment now.";
}

// Health looks at once when resumed and from then on, and tells onData what it has
// found. When it gets no answer what was found stands: the connection is shown
// elsewhere.
export class Health {
  #api;
  #onData;
  #now;
  #timer = 0;
  #lookAt = Infinity;
  #looked = -Infinity;
  #running = null;

  constructor(api, { onData, now = () => performance.now() }) {
    this.#api = api;
    this.#onData = onData;
    this.#now = now;
  }

  resume() {
    if (this.#running !== null) return;
    this.#running = new AbortController();
    this.look();
  }

  pause() {
    this.#running?.abort();
    this.#running = null;
    this.#lookAt = Infinity;
    clearTimeout(this.#timer);
  }

  // look looks soon: something has happened that may have changed what there is.
  look() {
    if (this.#running !== null) this.#plan(Math.max(this.#now(), this.#looked + restMs));
  }

  // plan has the next look at a time, or sooner if that was planned.
  #plan(at) {
    if (at >= this.#lookAt) return;
    clearTimeout(this.#timer);
    this.#lookAt = at;
    this.#timer = setTimeout(() => this.#look(this.#running.signal), at - this.#now());
  }

  async #look(signal) {
    this.#lookAt = Infinity;
    this.#looked = this.#now();
    let till = null;
    try {
      const { body } = await this.#api.readiness(signal);
      if (signal.aborted) return;
      const found = read(body, this.#now());
      till = found.till;
      this.#onData(found);
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === undefined) throw error; // a defect of the page: let it be seen
    }
    this.#plan(Math.min(this.#now() + everyMs, Math.max(this.#looked + restMs, till === null ? Infinity : till + graceMs)));
  }
}
