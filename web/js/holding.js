// holding.js: who holds a lock, in a few words. Pure functions.

// holding sums up who holds a lock: several holders are counted, then named. The
// row shows the lease that lasts longest, since when the lock has been held, and
// the newest token.
export function holding({ holders, holder_count: count }) {
  const longest = holders.reduce((a, b) => (b.deadline > a.deadline ? b : a));
  const first = holders.reduce((a, b) => (b.acquired_at < a.acquired_at ? b : a));
  const token = Math.max(...holders.map((holder) => holder.fencing_token));
  const limit = permits(holders);
  const of = limit === null ? "" : ` of ${limit}`;
  if (count === 1) return { longest, first, token, who: longest.owner, others: "", shared: of === "" ? "shared" : `shared, ${taken(holders)}${of}` };
  const owners = holders.map((holder) => holder.owner || "\u2014");
  return { longest, first, token, who: weighted(holders) ? `${count} holders` : `${count}${of} holders`, others: owners.slice(0, 20).join(", "), shared: "shared" };
}

// permits is how many permits there are: what the least tolerant of the holders
// tolerates, null if none of them has a limit.
export function permits(holders) {
  const limits = holders.map(({ limit }) => limit).filter((limit) => limit > 0);
  return limits.length === 0 ? null : Math.min(...limits);
}

// over says in words that more permits are taken than are tolerated by now: a limit was lowered.
export function over(holders, count) {
  return Math.max(count, taken(holders)) > (permits(holders) ?? Infinity) ? " (its limit was lowered)" : "";
}

// taken is how many permits the holders have that are shown: one that says nothing has one.
export function taken(holders) {
  return holders.reduce((sum, { permits: several }) => sum + (several ?? 1), 0);
}

// weighted tells whether a holder has several permits.
export function weighted(holders) {
  return holders.some(({ permits: several }) => several > 1);
}

// slots says which permits a holder has: "slot 3", "slots 0-2, 7", and of very many the first.
export function slots({ slot, slots: several, permits: count }) {
  if (several === undefined) return `slot ${slot}`;
  const ranges = [];
  for (const n of several) {
    const last = ranges.at(-1);
    if (last !== undefined && n === last[1] + 1) last[1] = n;
    else ranges.push([n, n]);
  }
  const text = ranges.map(([from, to]) => (from === to ? from : `${from}-${to}`)).join(", ");
  return `${count} permits, slots ${text}${several.length < count ? ", \u2026" : ""}`;
}
