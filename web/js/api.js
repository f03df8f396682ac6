// api.js: the requests the page makes, each with the time it was sent.

import { listPath, lockPath } from "./route.js";

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

// lock reads one lock: {sent, body}.
export function lock(name, signal) {
  return get(lockPath(name), signal, (body) => Array.isArray(body.holders));
}

async function get(path, signal, wellFormed) {
  const sent = performance.now();
  let response, body;
  try {
    response = await fetch(path, {
      signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
      cache: "no-store",
      redirect: "error",
      headers: { accept: "application/json, application/problem+json" },
    });
    body = await response.json().catch((cause) => {
      if (cause instanceof SyntaxError) return null; // an answer, but not one of the gateway's
      throw cause;
    });
  } catch (cause) {
    signal.throwIfAborted();
    throw new ApiError({ cause });
  }
  if (!response.ok) {
    const seconds = Number(response.headers.get("retry-after"));
    throw new ApiError({
      status: response.status,
      code: String(body?.code ?? ""),
      detail: String(body?.detail ?? ""),
      retryAfterMs: seconds > 0 ? seconds * 1000 : 0,
    });
  }
  if (body === null || typeof body !== "object" || !wellFormed(body)) {
    throw new ApiError({ status: response.status, code: "malformed", detail: "the answer is not one of this gateway" });
  }
  return { sent, body };
}
