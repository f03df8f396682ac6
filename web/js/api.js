// api.js: the requests the page makes, each with the time it was sent.

import * as key from "./key.js";
import { breakPath, eventsPath, historyPath, listPath, lockPath, queuePath, readinessPath } from "./route.js";

// A request without an answer for this long has failed: the page says so rather
// than waiting on a connection that has died silently.
const timeoutMs = 10_000;

// ApiError is a request without a useful answer. status is 0 when there was no
// answer at all, otherwise the HTTP status, with code and detail of the problem.
export class ApiError extends Error {
  constructor({ status = 0, code = "", detail = "", retryAfterMs = 0, cause } = {}) {
    super(detail || code || (status ? `status ${status}` : "no answer"), { cause });
    this.name = "ApiError";
    Object.assign(this, { status, code, detail, retryAfterMs });
  }
}

// listPage reads one page of live locks: {sent, body}.
export function listPage(query, signal) {
  return get(listPath(query), signal, (body) => Array.isArray(body.locks));
}

// lock reads one lock: {sent, at, body}; at is the time by the gateway's wall
// clock, to the second.
export function lock(name, signal) {
  return get(lockPath(name), signal, (body) => Array.isArray(body.holders));
}

// history reads who held a lock lately: {sent, body}.
export function history(name, signal) {
  return get(historyPath(name), signal, (body) => Array.isArray(body.grants));
}

// breakLease ends the lease that has a token, whoever holds it, or gives its holder notice of
// so many milliseconds; 0 is none. That it has been done may be said again. reason is told to
// the holder, and kept in the history; empty is none.
export function breakLease(name, token, reason, noticeMs = 0) {
  return end(breakPath(name, noticeMs), { "if-match": `"${token}"` }, reason);
}

// evict takes a waiter out of the queue, whose request is told the reason. It may be said again.
export function evict(name, lease, reason) {
  return end(queuePath(name, lease), {}, reason);
}

async function end(path, more, reason) {
  let response, body;
  try {
    const { headers, ...rest } = options("application/json");
    response = await fetch(path, {
      method: "DELETE", signal: AbortSignal.timeout(timeoutMs), ...rest, headers: { ...headers, ...more },
      ...reason === "" ? {} : { body: JSON.stringify({ reason }) },
    });
    body = response.ok ? null : await json(response);
  } catch (cause) {
    throw new ApiError({ cause });
  }
  if (!response.ok) throw refusal(response, body);
}

// readiness reads what is known of the store: {sent, body}. A gateway that is not
// ready says the same.
export function readiness(signal) {
  return get(readinessPath, signal, (body) => Array.isArray(body.checks), [200, 503]);
}

// events opens the stream of what happens to locks: an async iterator of its text
// in pieces. There is no time limit on it once it is open.
export async function events(signal) {
  const opening = new AbortController();
  const timer = setTimeout(() => opening.abort(), timeoutMs);
  try {
    const response = await fetch(eventsPath, {
      signal: AbortSignal.any([signal, opening.signal]), ...options("text/event-stream"),
    });
    const type = response.headers.get("content-type") ?? "";
    if (!response.ok || !type.startsWith("text/event-stream")) throw refusal(response, await json(response));
    return pieces(response.body.getReader());
  } catch (cause) {
    throw cause instanceof ApiError ? cause : new ApiError({ cause });
  } finally {
    clearTimeout(timer);
  }
}

// What comes within this is taken as one piece, unless it is much: each takes time, and nothing is read
// again so soon.
const gatherMs = 150;
const muchBytes = 8192;

async function* pieces(reader) {
  const decoder = new TextDecoder();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      yield decoder.decode(piece.value, { stream: true });
      if (piece.value.length < muchBytes) await new Promise((resolve) => setTimeout(resolve, gatherMs));
    }
  } catch (cause) {
    throw new ApiError({ cause });
  }
}

async function get(path, signal, wellFormed, fine = [200]) {
  const sent = performance.now();
  let response, body;
  try {
    response = await fetch(path, {
      signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]), ...options("application/json"),
    });
    body = await json(response);
  } catch (cause) {
    signal.throwIfAborted();
    throw new ApiError({ cause });
  }
  if (!fine.includes(response.status) || body === null || typeof body !== "object" || !wellFormed(body)) throw refusal(response, body);
  return { sent, at: Date.parse(response.headers.get("date") ?? ""), body };
}

const options = (type) => ({
  cache: "no-store", redirect: "error", credentials: "same-origin", headers: { accept: `${type}, application/problem+json`, ...key.headers() },
});

// json reads a body; null is an answer, but not one of the gateway's.
async function json(response) {
  try {
    return await response.json();
  } catch (cause) {
    if (cause instanceof SyntaxError) return null;
    throw cause;
  }
}

function refusal(response, body) {
  const { status } = response;
  if (response.ok) return new ApiError({ status, code: "malformed", detail: "the answer is not from a gateway" });
  const seconds = Number(response.headers.get("retry-after"));
  return new ApiError({
    status,
    code: String(body?.code ?? ""),
    detail: String(body?.detail ?? ""),
    retryAfterMs: seconds > 0 ? seconds * 1000 : 0,
  });
}
