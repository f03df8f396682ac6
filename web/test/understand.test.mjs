// What is said of one lock: why it is waited for, whether it may be stuck, its past on an
// axis, and the commands for it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { refused } from "../js/break.js";
import { breakCommands, commandsFor, evictCommands, quote } from "../js/commands.js";
import { axis, bar, gaps } from "../js/timeline.js";
import { fenceSays, overlong, usual, why } from "../js/why.js";

const nbsp = (s) => s.replaceAll("~", "\u00a0").replace(/<(.*?)>/g, "\u2068$1\u2069");
const holder = (owner, more) => ({ owner, deadline: 20_000, acquiredMark: 0, renewedMark: null, fencing_token: 7, ...more });
const lock = (holders, waiters, more) => ({ mode: "exclusive", holders, holder_count: holders.length, waiters, waiting: waiters.length, ...more });

test("why a lock is waited for", () => {
  const cases = [
    [lock([holder("ann")], []), null, ""],
    [lock([holder("ann")], [{ owner: "bob" }]), null, "<bob> waits because <ann> holds it exclusively. Unless it is renewed, the lease ends within 20~s."],
    [lock([holder("", { renewedMark: 0 })], [{ owner: "" }, { owner: "cy" }]), null, "The first, without an owner, waits because somebody without an owner holds it exclusively. Unless it is renewed again, the lease ends within 20~s. The others wait their turn: nobody overtakes."],
    [lock([holder("ann", { limit: 2 }), holder("bob", { limit: 2 })], [{ owner: "cy", mode: "shared" }], { mode: "shared" }), null, "<cy> waits because 2 of 2 permits are taken. Unless it is renewed, the first of these leases ends within 20~s."],
    [lock([holder("ann", { limit: 9, permits: 5 }), holder("bob", { limit: 9 })], [{ owner: "cy", mode: "shared", permits: 4 }], { mode: "shared" }), null, "<cy> waits because 6 of 9 permits are taken, and it wants 4 at once. Unless it is renewed, the first of these leases ends within 20~s."],
    [lock([holder("ann", { limit: 5 }), holder("bob", { limit: 5 }), holder("di", { limit: 5 })], [{ owner: "cy", mode: "shared", limit: 3 }], { mode: "shared" }), null, "<cy> waits because 3 of 5 permits are taken, and it tolerates 3 in all. Unless it is renewed, the first of these leases ends within 20~s."],
    [lock([holder("ann", { limit: 1 }), holder("bob", { limit: 4 })], [{ owner: "cy", mode: "shared", limit: 3 }], { mode: "shared" }), null, "<cy> waits because 2 of 1 permits are taken (its limit was lowered). Unless it is renewed, the first of these leases ends within 20~s."],
    [lock([holder("ann"), holder("bob")], [{ owner: "cy", mode: "exclusive" }], { mode: "shared" }), null, "<cy> waits because 2 share it, and it wants it alone. Unless it is renewed, the first of these leases ends within 20~s."],
    [lock([holder("ann", { breaksMark: 5500 })], [{ owner: "cy" }]), null, "<cy> waits because <ann> holds it exclusively. The holder was given notice: its lease is broken within 6~s."],
    [lock([holder("ann", { limit: 2, breaksMark: 0 }), holder("bob", { limit: 2 })], [{ owner: "cy", mode: "shared" }], { mode: "shared" }), null, "<cy> waits because 2 of 2 permits are taken. One of the holders was given notice: its lease is broken at once."],
    [lock([], [{ owner: "cy" }], { delayedMark: 4500 }), null, "<cy> waits because the lock is free, but delayed for 5~s: a lease ended without a release."],
    [lock([holder("ann")], [{ owner: "cy", mode: "shared" }], { mode: "shared", delayedMark: 4500 }), null, "<cy> waits because nobody else is let in: the lock is delayed for 5~s: a lease ended without a release."],
    [lock([], [{ owner: "cy" }], { delayedMark: 0 }), null, "<cy> is about to be granted the lock."],
    [lock([], [{ owner: "cy" }]), null, "<cy> is about to be granted the lock."],
    [lock([], [{ owner: "cy" }]), 9000, "<cy> waits because the store is in quarantine: no new leases are granted. For at most 9~s."],
    [lock([holder("ann", { deadline: -5 })], [{ owner: "cy" }]), null, "<cy> waits because <ann> holds it exclusively. The lease is over, and the lock is about to be handed on."],
  ];
  for (const [of, till, want] of cases) assert.equal(why(of, till, 0), nbsp(want));
});

test("who has a lock far longer than those before is remarked on", () => {
  const past = (ms, outcome = "released") => ({ held_ms: ms, outcome });
  const grants = [past(4000), past(3000), past(9000), past(90_000, "expired")];
  assert.deepEqual(usual(grants), { ms: 4000, of: 3 });
  assert.equal(usual(grants.slice(1)), null);
  assert.equal(overlong(holder("ann"), grants, 39_000), null);
  assert.equal(overlong(holder("ann"), grants, 41_000), nbsp("Held for 41~s; the last 3 who released it had it for a median of 4.0~s. It was never renewed."));
  assert.match(overlong(holder("ann", { renewedMark: 30_000 }), grants, 41_000), /renewed 11\u00a0s ago, so its process lives/);
  assert.match(overlong(holder("ann", { renewedMark: 30_000, attached: true }), grants, 41_000), /renewed 11\u00a0s ago, so its connection lives/);
});

test("grants lie on one axis, with what was free between them", () => {
  const grants = [
    { fencing_token: 3, since: 900, waited_ms: 100, held_ms: 0, outcome: "held" },
    { fencing_token: 2, since: 600, waited_ms: 0, held_ms: 200, outcome: "released" },
    { fencing_token: 1, since: 100, waited_ms: 100, held_ms: 500, outcome: "expired" },
  ];
  const range = axis(grants, 1000);
  assert.deepEqual(range, { from: 0, to: 1000 });
  assert.deepEqual(grants.map((grant) => bar(grant, range, 1000)), [{ wait: 0.8, start: 0.9, end: 1 }, { wait: 0.6, start: 0.6, end: 0.8 }, { wait: 0, start: 0.1, end: 0.6 }]);
  assert.deepEqual([...gaps(grants, 1000)], [[1, 0], [2, 0], [3, 100]]);
  assert.equal(axis([], 0), null);
});

test("the mark of a fence beside those who held the lock", () => {
  const fence = { highest_admitted: 7 };
  assert.equal(fenceSays({ holders: [], fence: { highest_admitted: 0 } }, []), "");
  assert.equal(fenceSays({ holders: [holder("ann")], fence }, []), nbsp("that of <ann>, who holds it now"));
  const past = [{ fencing_token: 7, owner: "bob" }];
  assert.equal(fenceSays({ holders: [holder("ann", { fencing_token: 9 })], fence }, past), nbsp("that of <bob>, who held it before: who holds it now has not come to the fence yet"));
  assert.equal(fenceSays({ holders: [], fence }, null), "that of an earlier grant");
});

test("commands are words of a shell, whatever the name", () => {
  assert.deepEqual([quote("a/b:c"), quote("it's"), quote('"17"')], ["a/b:c", "'it'\\''s'", "'\"17\"'"]);
  const lines = commandsFor("http://h:1", "a:b", [17], ["01K"], true).map(([, text]) => text);
  assert.ok(lines.includes('curl -X DELETE -H \'If-Match: "17"\' -H "Authorization: Bearer $FENCEPOST_KEY" http://h:1/locks/a%3Ab'), lines.join("\n"));
  assert.ok(lines.includes("lockctl break a:b 17"));
  assert.ok(lines.includes("lockctl break -notice 30s a:b 17"), lines.join("\n"));
  assert.ok(lines.includes('curl -X DELETE -H "Authorization: Bearer $FENCEPOST_KEY" \'http://h:1/queues/a%3Ab?lease=01K\'') && lines.includes("lockctl evict a:b 01K"), lines.join("\n"));
  assert.deepEqual(breakCommands("http://h:1", "-x", 17, 90_000, "it's \"stuck\"", false), [
    "curl -X DELETE -H 'If-Match: \"17\"' -d '{\"reason\":\"it'\\''s \\\"stuck\\\"\"}' 'http://h:1/locks/-x?notice_ms=90000'",
    "lockctl break -notice 90s -reason 'it'\\''s \"stuck\"' -- -x 17",
  ]);
  assert.deepEqual(evictCommands("http://h:1", "a", "01K", "why", false)[1], "lockctl evict -reason why a 01K");
  assert.deepEqual(["~root/x", "a:~root", "k=~", "a~b/~c"].map(quote), ["'~root/x'", "'a:~root'", "'k=~'", "a~b/~c"], "a shell takes ~ for a directory");
  const dashed = commandsFor("http://h:1", "-x", [17], [], false).map(([, text]) => text).filter((text) => text.startsWith("lockctl"));
  assert.deepEqual(dashed, ["lockctl get -- -x", "lockctl history -- -x", "lockctl watch -- -x", "lockctl break -- -x 17", "lockctl break -notice 30s -- -x 17"]);
});

test("a break that failed says whether it may have happened", () => {
  assert.match(refused({ status: 412, code: "stale_token", detail: "" }), /over already/);
  assert.match(refused({ status: 403, code: "forbidden", detail: "no" }), /scope admin/);
  assert.match(refused({ status: 0, code: "", detail: "" }), /unknown whether/);
  assert.match(refused({ status: 503, code: "unavailable", detail: "x" }), /unknown whether/);
});
