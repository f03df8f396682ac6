// pause.js: waiting, and for how long.

const firstRetryMs = 1000;
const longestRetryMs = 15_000;

// backoff is how long to wait after so many failures in a row: doubling, and
// never sooner than the gateway asked for, within reason.
export function backoff(failures, retryAfterMs = 0) {
  const doubled = Math.min(longestRetryMs, firstRetryMs * 2 ** Math.max(0, failures - 1));
  return Math.min(longestRetryMs, Math.max(doubled, retryAfterMs));
}

// wait resolves after ms, or at once when aborted.
export function wait(ms, signal) {
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
