// shown.js: the locks that are known, and how answers and events change them. Pure
// functions over {locks, more}: locks in the order of their names, more says that
// there are others behind the last.

// matches tells whether a lock of which an event tells may belong to what a query asks for,
// now and not before. The gateway decides; this only saves asking about every other name.
export function matches({ q, filter = {} }, { kind, name, owner, lease, mode }) {
  if (kind === "queued") return filter.waiting === true;
  if (kind !== "granted" || filter.held_for_ms > 0 || (filter.mode ?? mode) !== mode) return false;
  const part = q.toLowerCase();
  return part === "" || [name, owner, lease].some((text) => text.toLowerCase().includes(part));
}

// tells tells whether events say all there is to know of whether a lock belongs to a query:
// how many wait for one that is not known they don't, nor whether a lease is attached.
export function tells({ filter = {} }) {
  return !filter.waiting && !filter.attached;
}

// position is where the first name stands that is not before name.
export function position(locks, name) {
  let [from, to] = [0, locks.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (locks[middle].name < name) from = middle + 1;
    else to = middle;
  }
  return from;
}

// find returns the lock of a name, undefined if it is not known.
export function find(locks, name) {
  const lock = locks[position(locks, name)];
  return lock?.name === name ? lock : undefined;
}

// shows tells whether a name is in the list.
export function shows({ locks }, name) {
  return find(locks, name) !== undefined;
}

// beyond tells whether a name has its place behind the end of the page.
export function beyond({ locks, more }, name) {
  return more && (locks.length === 0 || name > locks.at(-1).name);
}

// place returns the list with what is now known of some names: the lock of each, or null
// where it is free or does not match. short says that others have to move up, over that the last had to go.
export function place(list, rows, wanted) {
  const changed = new Map();
  let short = false;
  for (const [name, lock] of rows) {
    const had = shows(list, name);
    if (lock !== null && (had || !beyond(list, name))) changed.set(name, lock);
    else if (had) {
      changed.set(name, null);
      short ||= list.more;
    }
  }
  const locks = replace(list.locks, changed);
  const over = locks.length > wanted;
  if (over) locks.length = wanted;
  return { locks, more: list.more || over, short, over };
}

// replace returns the locks with those of some names replaced, or left out where there is
// null. There may be very many: all are copied once, however many change.
function replace(locks, changed) {
  if (changed.size === 0) return locks;
  const all = [];
  let from = 0;
  for (const name of [...changed.keys()].sort()) {
    const at = position(locks, name);
    for (; from < at; from++) all.push(locks[from]);
    if (changed.get(name) !== null) all.push(changed.get(name));
    if (locks[at]?.name === name) from++;
  }
  for (; from < locks.length; from++) all.push(locks[from]);
  return all;
}

// splice returns the locks with what stood behind the name after, up to upTo and with
// it, replaced by a page; upTo null is the end.
export function splice(locks, after, page, upTo) {
  let from = after === "" ? 0 : position(locks, after);
  if (after !== "" && locks[from]?.name === after) from++;
  let to = upTo === null ? locks.length : position(locks, upTo);
  if (upTo !== null && locks[to]?.name === upTo) to++;
  return locks.slice(0, from).concat(page, locks.slice(Math.max(from, to)));
}

const endings = new Set(["released", "expired", "broken"]);

// apply returns the list of a query after events, in their order, for as far as they tell: of
// a new grant not until when it is (its deadline is Infinity), and what they leave out is
// put right when the lock is read.
export function apply(list, events, query, now) {
  const changed = new Map();
  for (const event of events) {
    const { kind, name } = event;
    const lock = changed.get(name) ?? find(list.locks, name);
    if (lock === undefined && (kind !== "granted" || beyond(list, name) || !tells(query) || !matches(query, event))) continue;
    if (lock?.holders.length === 0 && kind === "granted" && !matches(query, event)) continue; // another holder
    changed.set(name, after(lock ?? nobody(name), event, now));
  }
  if (changed.size === 0) return list;
  for (const [name, lock] of changed) if (lock.holders.length === 0) changed.set(name, null);
  return { ...list, locks: replace(list.locks, changed) };
}

const nobody = (name) => ({ name, held: true, holders: [], holder_count: 0, waiting: 0, waitedMark: null, waiters: [] });

// after is a lock after an event. Nobody overtakes the queue: while there is one, who is
// granted the lock comes from it. Since when the next one has waited events don't tell.
function after(lock, event, now) {
  const { kind, lease } = event;
  if (kind === "notice") return lock; // what is in view is read again
  const others = lock.holders.filter((holder) => holder.lease !== lease);
  if (kind === "queued") return { ...lock, waiting: lock.waiting + 1, waitedMark: lock.waiting === 0 ? now : lock.waitedMark };
  if (kind === "left") return { ...lock, waiting: Math.max(0, lock.waiting - 1), waitedMark: null };
  if (endings.has(kind)) return { ...lock, holders: others, holder_count: Math.max(others.length, lock.holder_count - 1) };
  if (others.length < lock.holders.length) return lock;
  const holder = {
    lease, owner: event.owner, mode: event.mode, fencing_token: event.token, hold: 1, ttl_ms: 0, metadata: {},
    deadline: Infinity, acquiredMark: now, renewedMark: null, acquired_at: event.at, storeNow: Date.parse(event.at),
  };
  const beside = event.mode === "shared" ? others : [];
  return {
    ...lock, mode: event.mode, holders: [...beside, holder], holder_count: event.mode === "shared" ? lock.holder_count + 1 : 1,
    waiting: Math.max(0, lock.waiting - 1), waitedMark: null,
  };
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

// overdue tells whether what is known of a lock can't be true any more, or is not known.
export function overdue(lock, now) {
  return lock.holders.some(({ deadline }) => deadline <= now || deadline === Infinity);
}
