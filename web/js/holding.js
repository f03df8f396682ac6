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
  if (count === 1) return { longest, first, token, who: longest.owner, others: "", shared: of === "" ? "shared" : `shared, 1${of}` };
  const owners = holders.map((holder) => holder.owner || "\u2014");
  return { longest, first, token, who: `${count}${of} holders`, others: owners.slice(0, 20).join(", "), shared: "shared" };
}

// permits is how many holders there may be: what the least tolerant of them
// tolerates, null if none of them has a limit.
export function permits(holders) {
  const limits = holders.map(({ limit }) => limit).filter((limit) => limit > 0);
  return limits.length === 0 ? null : Math.min(...limits);
}
