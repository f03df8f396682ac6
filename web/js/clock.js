// clock.js: time without a wall clock. The browser's own clock may be wrong by
// hours, so everything counts from performance.now() and from what the gateway
// said. Pure functions: times in milliseconds.

// read turns a holder of an answer into what the page counts with. sent is
// performance.now() from before the request was sent, so the deadline is never
// later than the store's. renewedMark is null if the lease was never renewed, breaksMark if its
// holder was given no notice of a break.
export function read(holder, sent) {
  const acquired = Date.parse(holder.acquired_at);
  const expires = Date.parse(holder.expires_at);
  // The store's clock at the answer, from two figures of the same answer.
  const storeNow = expires - holder.expires_in_ms;
  const age = storeNow - acquired;
  // A renewal sets the end a TTL away. Where max_hold_ms ends the lease sooner, the
  // last renewal may have been later than this says, never earlier.
  const renewed = expires - holder.ttl_ms;
  return {
    ...holder,
    deadline: sent + holder.expires_in_ms,
    acquiredMark: sent - (age > 0 ? age : 0),
    renewedMark: renewed - acquired > roundedMs ? sent - Math.max(0, storeNow - renewed) : null,
    renewedAt: renewed,
    breaksMark: holder.breaks_in_ms === undefined ? null : sent + holder.breaks_in_ms,
    storeNow,
  };
}

// Each of the two times of an answer is rounded down to a millisecond.
const roundedMs = 1;

// remaining is the time left at now, never negative.
export function remaining(deadline, now) {
  return Math.max(0, deadline - now);
}

// fraction is the part of the TTL that is left, 0 to 1.
export function fraction(deadline, ttl, now) {
  if (!(ttl > 0)) return 0;
  return Math.min(1, remaining(deadline, now) / ttl);
}

// level says how a countdown should look. Holders renew at a third of the TTL,
// so less than a third left means that two renewals have not come.
export function level(deadline, ttl, now) {
  if (deadline <= now) return "over";
  return fraction(deadline, ttl, now) < 1 / 3 ? "low" : "ok";
}

// duration writes a span for people, rounded down: 8.3 s, 42 s, 4 min 05 s,
// 2 h 05 min, 3 d 04 h.
export function duration(ms) {
  if (ms < 10_000) {
    const tenths = Math.floor(Math.max(0, ms) / 100);
    return `${Math.floor(tenths / 10)}.${tenths % 10}\u00a0s`;
  }
  return span(ms);
}

// span is duration in whole seconds.
export function span(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000);
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}\u00a0s`;
  if (s < 3600) return `${Math.floor(s / 60)}\u00a0min ${two(s % 60)}\u00a0s`;
  if (s < 86_400) return `${Math.floor(s / 3600)}\u00a0h ${two(Math.floor((s % 3600) / 60))}\u00a0min`;
  return `${Math.floor(s / 86_400)}\u00a0d ${two(Math.floor((s % 86_400) / 3600))}\u00a0h`;
}

// age writes a span that is only compared with others: 42 s, 4 min, 2 h 05 min, 3 d 04 h.
export function age(ms) {
  return ms < 3_600_000 ? span(ms).replace(/ \d\d\u00a0s$/, "") : span(ms);
}

// plainSpan writes a TTL without needless parts: 500 ms, 30 s, 1.5 s, 2 min.
export function plainSpan(ms) {
  if (ms < 1000) return `${ms}\u00a0ms`;
  if (ms % 1000 !== 0 && ms < 60_000) return `${ms / 1000}\u00a0s`;
  return span(ms).replace(/ 00\u00a0(s|min|h)$/, "");
}

// Making a format takes as long as using it a hundred times.
const formats = new Map();

function format(locale, style) {
  const key = JSON.stringify([locale, style]);
  if (!formats.has(key)) formats.set(key, new Intl.DateTimeFormat(locale, style));
  return formats.get(key);
}

// since writes when a lease was acquired: the time if that was on the day the
// store has now, the date too if it was another day. Both are shown in the
// reader's time zone, neither is compared with the reader's clock.
export function since(acquiredAt, storeNow, locale, timeZone) {
  const then = new Date(acquiredAt);
  if (Number.isNaN(then.getTime())) return "";
  const day = format("en-CA", { timeZone, year: "numeric", month: "2-digit", day: "2-digit" });
  const sameDay = Number.isFinite(storeNow) && day.format(then) === day.format(storeNow);
  const clock = { timeZone, hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  const style = sameDay ? { ...clock, second: "2-digit" } : { ...clock, day: "numeric", month: "short" };
  return format(locale, style).format(then);
}

// instant writes a moment in full, with its time zone.
export function instant(at, locale, timeZone) {
  const then = new Date(at);
  if (Number.isNaN(then.getTime())) return "";
  return format(locale, {
    timeZone, year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
    fractionalSecondDigits: 3, hourCycle: "h23", timeZoneName: "short",
  }).format(then);
}
