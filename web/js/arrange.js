// arrange.js: which of the locks that are known are shown, and in what order. Pure
// functions over locks in the order of their names, and generators that yield after each
// slice of such work.

import { fraction } from "./clock.js";
import { permits } from "./holding.js";
import { each, sorted } from "./slices.js";

// The orders that there are, each by a number, the smallest first; a minus before the
// name turns one round. Without one the order is that of the names.
const keys = {
  held: (lock) => -heldFor(lock),
  queue: (lock) => -lock.waiting,
  waits: ({ waitedMark }) => waitedMark ?? Infinity,
  remaining: ({ holders }) => most(holders, (holder) => holder.deadline),
  token: ({ holders }) => most(holders, (holder) => holder.fencing_token),
};

function most(holders, of) {
  let greatest = of(holders[0]);
  for (let i = 1; i < holders.length; i++) greatest = Math.max(greatest, of(holders[i]));
  return greatest;
}

export const orders = ["name", "-name", "owner", "-owner", ...Object.keys(keys).flatMap((key) => [key, `-${key}`])];

// The filters that are on or off.
export const marks = ["waited", "expiring", "unrenewed", "attached"];

// plain tells whether all that is known is shown, in the order of the names.
export function plain(route) {
  return route.sort === "name" && route.held === "" && route.mode === "" && marks.every((mark) => !route[mark]);
}

const units = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

// spanMs reads a span such as 10m; 0 if it is none.
export function spanMs(text) {
  const [, count, unit] = /^([1-9]\d{0,4})([smhd])$/.exec(text) ?? [];
  return count === undefined ? 0 : Number(count) * units[unit];
}

// about tells whether a lock is about to expire: less than a third of a TTL is left.
export function about({ holders }, now) {
  return holders.some(({ deadline, ttl_ms: ttl }) => Number.isFinite(deadline) && fraction(deadline, ttl, now) < 1 / 3);
}

// predicate returns what a lock has to meet at now.
function predicate({ held, waited, expiring, unrenewed, attached, mode }, now) {
  const since = now - spanMs(held);
  return (lock) =>
    (held === "" || lock.holders.some(({ acquiredMark }) => acquiredMark <= since)) &&
    (!waited || lock.waiting > 0) &&
    (!expiring || about(lock, now)) &&
    (!unrenewed || lock.holders.some(({ renewedMark }) => renewedMark === null)) &&
    (!attached || lock.holders.some((holder) => holder.attached)) &&
    (mode === "" || (mode === "permits" ? lock.mode === "shared" && permits(lock.holders) !== null : lock.mode === mode));
}

// The gateway looks for no more than this.
const mostHeldMs = 30 * units.d;

// narrowing is what the gateway is asked for of the filters of a route, as parameters of the
// list: the locks that it leaves out meet no predicate. It has no word for permits, nor for a
// part of a TTL: these the page alone looks for, among all.
export function narrowing({ held, waited, unrenewed, attached, mode }) {
  return {
    ...mode === "" ? {} : { mode: mode === "permits" ? "shared" : mode },
    ...held === "" ? {} : { held_for_ms: Math.min(spanMs(held), mostHeldMs) },
    ...waited ? { waiting: true } : {},
    ...unrenewed ? { unrenewed: true } : {},
    ...attached ? { attached: true } : {},
  };
}

// arrange comes to the locks that meet the filters of a route, in its order. Equal ones stay
// in the order of their names. It yields after each slice of the work: see slices.js.
export function* arrange(locks, route, now) {
  if (plain(route)) return locks;
  const some = plain({ ...route, sort: "name" }) ? locks : yield* filtered(locks, predicate(route, now));
  const turn = route.sort.startsWith("-") ? -1 : 1;
  const by = route.sort.replace(/^-/, "");
  if (by === "name") return turn > 0 ? some : yield* picked(some, (i) => some.length - 1 - i);
  const key = by === "owner" ? yield* byOwner(some) : keys[by];
  return yield* byNumber(some, (lock) => turn * key(lock));
}

function* filtered(locks, meets) {
  const some = [];
  yield* each(locks.length, (i) => {
    if (meets(locks[i])) some.push(locks[i]);
  });
  return some;
}

function* picked(locks, at) {
  const all = [];
  yield* each(locks.length, (i) => all.push(locks[at(i)]));
  return all;
}

// byOwner comes to a key by the text of the owner.
function* byOwner(locks) {
  const places = new Map();
  yield* each(locks.length, (i) => places.set(locks[i].holders[0].owner, 0));
  const owners = yield* sorted([...places.keys()]);
  yield* each(owners.length, (i) => places.set(owners[i], i));
  return ({ holders: [{ owner }] }) => places.get(owner);
}

// Numbers alone are sorted ten times as fast as by a function: each has the index of its
// lock in its last digits, which 2^53 leaves room for.
const indexes = 2 ** 17;
const largest = 2 ** 36 - 1;

function* byNumber(locks, key) {
  if (locks.length > indexes) throw new RangeError("more locks than are ever known");
  const numbers = new Float64Array(locks.length);
  let [least, most] = [Infinity, -Infinity];
  yield* each(locks.length, (i) => {
    const number = numbers[i] = key(locks[i]);
    if (!Number.isFinite(number)) return;
    if (number < least) least = number;
    if (number > most) most = number;
  });
  // Two that are closer than this rounds count as equal, which is some milliseconds in a year.
  const scale = Math.min(1, (largest - 2) / (most - least));
  yield* each(locks.length, (i) => {
    const number = numbers[i];
    const rank = number === Infinity ? largest : number === -Infinity ? 0 : Math.floor((number - least) * scale) + 1;
    numbers[i] = rank * indexes + i;
  });
  const order = yield* sorted(numbers);
  return yield* picked(locks, (i) => order[i] % indexes);
}

const heldFor = ({ holders }) => most(holders, (holder) => -holder.acquiredMark);

// More branches than this are only counted.
const maxBranches = 40;

// branches comes to how many names there are below a prefix, by what follows up to the next
// slash: {branches: [{prefix, count}], the largest first, others: how many there are besides,
// leaves: how many names end there}. It yields as arrange does.
export function* branches(locks, prefix) {
  const counts = new Map();
  let leaves = 0;
  yield* each(locks.length, (i) => {
    const { name } = locks[i];
    if (!name.startsWith(prefix)) return;
    const slash = name.indexOf("/", prefix.length);
    if (slash < 0) leaves++;
    else {
      const branch = name.slice(0, slash + 1);
      counts.set(branch, (counts.get(branch) ?? 0) + 1);
    }
  });
  const found = [];
  const larger = (a, b) => a.count > b.count || (a.count === b.count && a.prefix < b.prefix);
  const all = counts.entries();
  yield* each(counts.size, () => {
    const [branch, count] = all.next().value;
    const entry = { prefix: branch, count };
    let at = found.length;
    while (at > 0 && larger(entry, found[at - 1])) at--;
    if (at === maxBranches) return;
    found.splice(at, 0, entry);
    if (found.length > maxBranches) found.pop();
  });
  return { branches: found, others: counts.size - found.length, leaves };
}
