// timeline.js: the last grants of a lock on one axis of time: who waited how long, held it
// how long, and when nobody did. Pure functions.

// axis is the time that the grants take up, by the page's clock: from the first moment that
// anybody of them waited, to now. null if there are none.
export function axis(grants, now) {
  if (grants.length === 0) return null;
  const from = Math.min(...grants.map(({ since, waited_ms: waited }) => since - waited));
  return { from, to: Math.max(now, from + 1) };
}

// until is when a grant ended, or now if it has not.
export const until = (grant, now) => (grant.outcome === "held" ? now : grant.since + grant.held_ms);

// bar is where a grant stands on an axis, in parts of it: {wait, start, end}.
export function bar(grant, { from, to }, now) {
  const part = (at) => Math.max(0, Math.min(1, (at - from) / (to - from)));
  return { wait: part(grant.since - grant.waited_ms), start: part(grant.since), end: part(until(grant, now)) };
}

// Times are rounded to milliseconds: less than this is no gap.
const leastGapMs = 5;

// gaps says for how long nobody held the lock before each grant, by its token: that is the
// time since the last of those granted before it had ended. grants are the newest first.
export function gaps(grants, now) {
  const found = new Map();
  let end = null;
  for (const grant of grants.toReversed()) {
    const gap = end === null ? 0 : grant.since - end;
    found.set(grant.fencing_token, gap < leastGapMs ? 0 : gap);
    end = Math.max(end ?? -Infinity, until(grant, now));
  }
  return found;
}
