// why.js: what the figures of a lock say in a sentence. Pure functions.

import { duration, plainSpan, span } from "./clock.js";
import { over, permits, taken, weighted } from "./holding.js";
import { left } from "./health.js";

// isolate keeps the direction of an owner's text from that of the sentence around it.
const isolate = (owner) => (owner ? `\u2068${owner}\u2069` : "somebody without an owner");

// usual is for how long those held the lock who have let it go: the middle one, null if
// they are too few to say.
export function usual(grants) {
  const held = (grants ?? []).filter(({ outcome }) => outcome === "released").map(({ held_ms: ms }) => ms).sort((a, b) => a - b);
  return held.length < 3 ? null : { ms: held[Math.floor(held.length / 2)], of: held.length };
}

// A holder that has had the lock for so many times as long as is usual may be stuck.
const suspicious = 10;

// overlong says that a holder has had the lock far longer than those before it, which is
// how one looks that renews and does not get on; null if it has not.
export function overlong(holder, grants, now) {
  const before = usual(grants);
  const held = now - holder.acquiredMark;
  if (before === null || held < suspicious * Math.max(before.ms, 1000)) return null;
  const alive = holder.attached ? "so its connection lives" : "so its process lives";
  const renews = holder.renewedMark === null ? "It was never renewed" : `It was renewed ${span(now - holder.renewedMark)} ago, ${alive}, but it may be stuck`;
  return `Held for ${span(held)}; the last ${before.of} who released it had it for a median of ${duration(before.ms)}. ${renews}.`;
}

// why says what the first of the queue waits for; till is when a quarantine ends, null if
// there is none. Empty if nobody waits.
export function why(lock, till, now) {
  if (lock.waiting === 0) return "";
  const [first] = lock.waiters;
  const who = first === undefined ? "The first" : first.owner ? isolate(first.owner) : "The first, without an owner,";
  const others = lock.waiting > 1 ? " The others wait their turn: nobody overtakes." : "";
  if (till !== null) return `${who} waits because the store is in quarantine: no new leases are granted. ${left(till, now)}${others}`;
  const { holders, holder_count: count, delayedMark: delayed } = lock;
  if ((delayed ?? now) > now) {
    const free = holders.length === 0 ? "the lock is free, but delayed" : "nobody else is let in: the lock is delayed";
    return `${who} waits because ${free} for ${plainSpan(Math.ceil((delayed - now) / 1000) * 1000)}: a lease ended without a release.${others}`;
  }
  if (holders.length === 0) return `${who} is about to be granted the lock.${others}`;
  return `${who} waits because ${held(lock, first)}. ${until(holders, count, now)}${others}`;
}

function held({ holders, holder_count: count, mode }, first) {
  const limit = permits(holders);
  if (mode === "exclusive") return `${isolate(holders[0].owner)} holds it exclusively`;
  if (first?.mode === "exclusive") return count === 1 ? `${isolate(holders[0].owner)} shares it, and it wants it alone` : `${count} share it, and it wants it alone`;
  if (limit === null) return "its turn has just come";
  const permitsTaken = weighted(holders) ? taken(holders) : count;
  const own = first?.limit > 0 && first.limit < limit ? `, and it tolerates ${first.limit} in all` : "";
  return `${permitsTaken} of ${limit} permits are taken${over(holders, count)}${own}${first?.permits > 1 ? `, and it wants ${first.permits} at once` : ""}`;
}

function until(holders, count, now) {
  const next = holders.reduce((a, b) => (a.deadline < b.deadline ? a : b));
  const last = holders.reduce((a, b) => (a.deadline > b.deadline ? a : b));
  const end = count > 1 ? "the first of these leases ends" : "the lease ends";
  if (last.deadline <= now) return "The lease is over, and the lock is about to be handed on.";
  const told = holders.filter(({ breaksMark }) => (breaksMark ?? null) !== null);
  if (told.length > 0) {
    const soonest = Math.min(...told.map(({ breaksMark }) => breaksMark));
    return `${count > 1 ? "One of the holders" : "The holder"} was given notice: its lease is broken ${soonest > now ? `within ${plainSpan(Math.ceil((soonest - now) / 1000) * 1000)}` : "at once"}.`;
  }
  const renewed = holders.some(({ renewedMark }) => renewedMark !== null);
  return `Unless it is ${renewed ? "renewed again" : "renewed"}, ${end} ${next.deadline > now ? `within ${plainSpan(Math.ceil((next.deadline - now) / 1000) * 1000)}` : "at once"}.`;
}

// fenceSays tells of whom the highest token is that a fence has admitted.
export function fenceSays({ holders, fence }, grants) {
  const admitted = fence?.highest_admitted ?? 0;
  if (admitted === 0) return "";
  const holder = holders.find(({ fencing_token: token }) => token === admitted);
  if (holder !== undefined) return `that of ${isolate(holder.owner)}, who holds it now`;
  const past = (grants ?? []).find(({ fencing_token: token }) => token === admitted);
  const whose = past === undefined ? "that of an earlier grant" : `that of ${isolate(past.owner)}, who held it before`;
  return holders.length > 0 ? `${whose}: who holds it now has not come to the fence yet` : whose;
}
