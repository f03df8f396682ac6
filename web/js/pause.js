// pause.js: waiting, and for how long.

// A gateway that is away is asked again so often. It costs nothing while nobody answers, and when one does
// the page is live within three seconds.
const firstRetryMs = 1000;
const retryMs = 2000;

// Many pages that lost the same gateway at once don't come back at once: each waits up to a quarter less.
const spread = 0.25;

// The gateway may ask for more, within reason.
const longestRetryMs = 15_000;

// backoff is how long to wait after so many failures in a row, and never less than the gateway asked for,
// within reason.
export function backoff(failures, retryAfterMs = 0, random = Math.random) {
  const pause = (failures > 1 ? retryMs : firstRetryMs) * (1 - spread * random());
  return Math.max(pause, Math.min(longestRetryMs, retryAfterMs));
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
