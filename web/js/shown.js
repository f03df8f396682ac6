// shown.js: the list that is shown, and how an answer about one name changes it.
// Pure functions over {locks, more}: locks in the order of their names, more
// says that there are others behind the last.

// matches tells whether a lock that was just granted may belong to a search. The
// gateway decides; this only saves asking about every other name.
export function matches(q, { name, owner, lease }) {
  const part = q.toLowerCase();
  return part === "" || [name, owner, lease].some((text) => text.toLowerCase().includes(part));
}

// shows tells whether a name is in the list.
export function shows({ locks }, name) {
  return locks.some((lock) => lock.name === name);
}

// beyond tells whether a name has its place behind the end of the page.
export function beyond({ locks, more }, name) {
  return more && (locks.length === 0 || name > locks.at(-1).name);
}

// place returns the list with what is now known of one name: its lock, or null
// where it is free or does not match. short says that others have to move up.
export function place(list, name, lock, wanted) {
  const had = shows(list, name);
  const locks = list.locks.filter((other) => other.name !== name);
  if (lock === null || (!had && beyond(list, name))) return { locks, more: list.more, short: had && list.more };
  const at = locks.findIndex((other) => other.name > name);
  locks.splice(at < 0 ? locks.length : at, 0, lock);
  const over = locks.length > wanted;
  if (over) locks.length = wanted;
  return { locks, more: list.more || over, short: false };
}

// A lease is read again when so much of its TTL is left: renewals make no event.
// Holders renew at two thirds, so one that lives is never shown as almost over.
const readAgainAt = [0.4, 0.2, 0];

// However short its TTL, a lease is read again no more often than this.
const readAgainMs = 2000;

// due is the instant after now at which a lock has to be read again.
export function due(lock, now) {
  let first = Infinity;
  for (const { deadline, ttl_ms: ttl } of lock.holders) {
    const part = readAgainAt.find((left) => deadline - left * ttl > now) ?? 0;
    first = Math.min(first, Math.max(deadline - part * ttl, now + readAgainMs));
  }
  return first;
}
