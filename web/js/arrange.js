// arrange.js: which of the locks that are known are shown, and in what order. Pure
// functions over locks in the order of their names.

import { fraction } from "./clock.js";
import { permits } from "./holding.js";

// The orders that there are, each by a number, the smallest first; a minus before the
// name turns one round. Without one the order is that of the names.
const keys = {
  held: ({ holders }) => most(holders, (holder) => -holder.acquiredMark) * -1,
  queue: (lock) => -lock.waiting,
  remaining: ({ holders }) => most(holders, (holder) => holder.deadline),
  token: ({ holders }) => most(holders, (holder) => holder.fencing_token),
};

function most(holders, of) {
  let greatest = of(holders[0]);
  for (let i = 1; i < holders.length; i++) greatest = Math.max(greatest, of(holders[i]));
  return greatest;
}

export const orders = ["name", "-name", "owner", "-owner", ...Object.keys(keys).flatMap((key) => [key, `-${key}`])];

// plain tells whether all that is known is shown, in the order of the names.
export function plain({ sort, held, waited, expiring, unrenewed, mode }) {
  return sort === "name" && held === "" && !waited && !expiring && !unrenewed && mode === "";
}

const units = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

// spanMs reads a span such as 10m; 0 if it is none.
export function spanMs(text) {
  const [, count, unit] = /^([1-9]\d{0,4})([smhd])$/.exec(text) ?? [];
  return count === undefined ? 0 : Number(count) * units[unit];
}

// predicate returns what a lock has to meet at now.
function predicate({ held, waited, expiring, unrenewed, mode }, now) {
  const since = now - spanMs(held);
  return (lock) =>
    (held === "" || lock.holders.some(({ acquiredMark }) => acquiredMark <= since)) &&
    (!waited || lock.waiting > 0) &&
    (!expiring || lock.holders.some(({ deadline, ttl_ms: ttl }) => Number.isFinite(deadline) && fraction(deadline, ttl, now) < 1 / 3)) &&
    (!unrenewed || lock.holders.some(({ renewedMark }) => renewedMark === null)) &&
    (mode === "" || (mode === "permits" ? lock.mode === "shared" && permits(lock.holders) !== null : lock.mode === mode));
}

// arrange returns the locks that meet the filters of a route, in its order. Equal ones
// stay in the order of their names.
export function arrange(locks, route, now) {
  if (plain(route)) return locks;
  const some = plain({ ...route, sort: "name" }) ? locks.slice() : locks.filter(predicate(route, now));
  const turn = route.sort.startsWith("-") ? -1 : 1;
  const by = route.sort.replace(/^-/, "");
  if (by === "name") return turn > 0 ? some : some.reverse();
  if (by === "owner") {
    const groups = new Map();
    for (const lock of some) {
      const [{ owner }] = lock.holders;
      const group = groups.get(owner);
      if (group === undefined) groups.set(owner, [lock]);
      else group.push(lock);
    }
    const owners = [...groups.keys()].sort();
    return (turn > 0 ? owners : owners.reverse()).flatMap((owner) => groups.get(owner));
  }
  return byNumber(some, (lock) => turn * keys[by](lock));
}

// Numbers alone are sorted ten times as fast as by a function: each has the index of its
// lock in its last digits, which 2^53 leaves room for.
const indexes = 2 ** 17;
const largest = 2 ** 36 - 1;

function byNumber(locks, key) {
  if (locks.length > indexes) throw new RangeError("more locks than are ever known");
  const numbers = new Float64Array(locks.length);
  let [least, most] = [Infinity, -Infinity];
  for (let i = 0; i < locks.length; i++) {
    const number = numbers[i] = key(locks[i]);
    if (!Number.isFinite(number)) continue;
    if (number < least) least = number;
    if (number > most) most = number;
  }
  // Two that are closer than this rounds count as equal, which is some milliseconds in a year.
  const scale = Math.min(1, (largest - 2) / (most - least));
  for (let i = 0; i < locks.length; i++) {
    const number = numbers[i];
    const rank = number === Infinity ? largest : number === -Infinity ? 0 : Math.floor((number - least) * scale) + 1;
    numbers[i] = rank * indexes + i;
  }
  numbers.sort();
  return Array.from(numbers, (number) => locks[number % indexes]);
}

// branches counts the names below a prefix by what follows up to the next slash:
// [{prefix, count}], the largest first, and how many names end there.
export function branches(locks, prefix) {
  const counts = new Map();
  let leaves = 0;
  for (const { name } of locks) {
    if (!name.startsWith(prefix)) continue;
    const slash = name.indexOf("/", prefix.length);
    if (slash < 0) leaves++;
    else {
      const branch = name.slice(0, slash + 1);
      counts.set(branch, (counts.get(branch) ?? 0) + 1);
    }
  }
  const found = [...counts].map(([branch, count]) => ({ prefix: branch, count }));
  return { branches: found.sort((a, b) => b.count - a.count || (a.prefix < b.prefix ? -1 : 1)), leaves };
}
