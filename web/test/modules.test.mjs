// The page's pure modules, under node's own test runner: node --test web/test

import assert from "node:assert/strict";
import { test } from "node:test";

import * as clock from "../js/clock.js";
import { curlLine } from "../js/empty.js";
import { holding, slots } from "../js/holding.js";
import { ended } from "../js/list.js";
import * as route from "../js/route.js";
import * as state from "../js/state.js";

const nbsp = (s) => s.replaceAll(" ", "\u00a0").replaceAll("_", " ");

test("durations are rounded down", () => {
  const cases = [
    [-5, "0.0 s"], [0, "0.0 s"], [99, "0.0 s"], [8399, "8.3 s"], [9999, "9.9 s"], [10_000, "10 s"], [59_999, "59 s"],
    [60_000, "1 min_00 s"], [245_900, "4 min_05 s"], [3_600_000, "1 h_00 min"], [86_399_999, "23 h_59 min"],
    [86_400_000, "1 d_00 h"], [30 * 86_400_000, "30 d_00 h"],
  ];
  for (const [ms, want] of cases) assert.equal(clock.duration(ms), nbsp(want), `${ms} ms`);
});

test("an age has no more parts than it needs", () => {
  const cases = [[0, "0 s"], [59_999, "59 s"], [60_000, "1 min"], [245_900, "4 min"], [3_599_999, "59 min"], [3_600_000, "1 h_00 min"], [86_400_000, "1 d_00 h"]];
  for (const [ms, want] of cases) assert.equal(clock.age(ms), nbsp(want), `${ms} ms`);
});

test("a TTL is written without needless parts", () => {
  const cases = [[100, "100 ms"], [1500, "1.5 s"], [30_000, "30 s"], [60_000, "1 min"], [90_000, "1 min_30 s"], [86_400_000, "1 d"]];
  for (const [ms, want] of cases) assert.equal(clock.plainSpan(ms), nbsp(want), `${ms} ms`);
});

test("a holder is counted from before the request was sent, whatever the wall clock says", () => {
  const holder = clock.read({
    acquired_at: "2026-11-20T14:00:00.000Z", expires_at: "2026-11-20T14:00:40.000Z", expires_in_ms: 25_000, ttl_ms: 30_000,
  }, 1000);
  assert.equal(holder.deadline, 26_000);
  assert.equal(holder.acquiredMark, 1000 - 15_000);
  assert.equal(new Date(holder.storeNow).toISOString(), "2026-11-20T14:00:15.000Z");
});

test("the part of the TTL that is left stays between 0 and 1", () => {
  assert.equal(clock.fraction(26_000, 30_000, 11_000), 0.5);
  assert.equal(clock.fraction(26_000, 30_000, 30_000), 0);
  assert.equal(clock.fraction(90_000, 30_000, 0), 1);
  assert.equal(clock.fraction(1000, 0, 0), 0);
  assert.equal(clock.level(26_000, 15_000, 20_999), "ok");
  assert.equal(clock.level(26_000, 15_000, 21_001), "low");
  assert.equal(clock.level(26_000, 15_000, 26_000), "over");
});

test("since names the day only when it is another one for the store", () => {
  const at = "2026-11-20T14:00:05.123Z";
  assert.equal(clock.since(at, Date.parse("2026-11-20T20:00:00Z"), "en-GB", "UTC"), "14:00:05");
  assert.match(clock.since(at, Date.parse("2026-11-21T00:00:01Z"), "en-GB", "UTC"), /^20 Nov,? (at )?14:00$/);
  assert.equal(clock.since("nonsense", 0, "en-GB", "UTC"), "");
});

test("names follow the grammar", () => {
  for (const name of ["a", "orders/42", "a:b@c~d-e_f.g", "x".repeat(255)]) assert.ok(route.validName(name), name);
  for (const name of ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "a%2Fb", "ä", "x".repeat(256), "a?b", "a\n"]) {
    assert.ok(!route.validName(name), JSON.stringify(name));
  }
});

test("addresses survive the way out and back", () => {
  const filtered = { q: "x", prefix: "orders/", sort: "-held", held: "10m", waited: true, expiring: true, unrenewed: true, attached: true, mode: "permits", name: "orders/42" };
  for (const part of [{ name: null }, { q: "a b&c=ä#?", name: null }, { q: "x", name: "orders/42" }, { name: "a:b@c/~d" }, filtered]) {
    const want = { ...route.everything, ...part };
    const url = new URL(route.address("/", want), "http://localhost");
    assert.deepEqual(route.parse(url), want);
  }
  assert.deepEqual(route.parse({ search: "", hash: "#/locks/a%2Fb" }), { ...route.everything, name: "a/b" });
  assert.deepEqual(route.parse({ search: "", hash: "#/locks/%zz" }), { ...route.everything, name: "%zz" });
  for (const odd of ["?sort=constructor", "?held=soon", "?held=0m", "?mode=x", "?prefix=a%20b", "?other=1"]) {
    assert.deepEqual(route.parse({ search: odd, hash: "" }), { ...route.everything, name: null }, odd);
  }
  assert.deepEqual(route.parse({ search: "", hash: "#locks" }), { ...route.everything, name: null });
});

test("paths of the interface", () => {
  assert.deepEqual([route.breakPath("a/b:c", 0), route.breakPath("a", 30_000)], ["/locks/a/b%3Ac", "/locks/a?notice_ms=30000"]);
  assert.equal(route.queuePath("a/b:c", "01K"), "/queues/a/b%3Ac?lease=01K");
  assert.equal(route.lockPath("orders/a:b"), "/locks/orders/a%3Ab");
  assert.equal(route.listPath({ q: "", limit: 100, cursor: "" }), "/locks?limit=100");
  assert.equal(route.listPath({ q: "", limit: 1, filter: { mode: "shared", held_for_ms: 60_000, waiting: true } }), "/locks?limit=1&mode=shared&held_for_ms=60000&waiting=true");
  assert.equal(route.historyPath("orders/a:b"), "/history/orders/a%3Ab");
  assert.equal(route.listPath({ q: "x", limit: 1, prefix: "orders/a:b" }), "/locks?limit=1&prefix=orders%2Fa%3Ab&q=x");
  assert.equal(route.listPath({ q: "a&b", limit: 5, cursor: "c=" }), "/locks?limit=5&q=a%26b&cursor=c%3D");
});

test("the connection is named for what is wrong", () => {
  const kind = (error, online = true) => state.failed(state.initial, { detail: "", code: "", ...error }, 1000, 0, online).kind;
  assert.equal(kind({ status: 0 }), "reconnecting");
  assert.equal(kind({ status: 0 }, false), "offline");
  assert.equal(kind({ status: 503, code: "unavailable" }, false), "store");
  assert.equal(kind({ status: 503, code: "draining" }), "draining");
  assert.equal(kind({ status: 500 }), "refused");
});

test("what is shown ages until the next good answer", () => {
  const live = state.answered(1000);
  assert.equal(state.stale(live), false);
  assert.equal(state.stale(state.answered(1000, true)), false);
  assert.notEqual(state.label(state.answered(1000, true)), state.label(live));
  const lost = state.failed(live, { status: 0, code: "", detail: "" }, 4000, 3000, true);
  assert.equal(state.stale(lost), true);
  assert.equal(state.times(lost, 13_000), nbsp("This_is_what_was_true_12 s_ago._Trying…"));
  assert.equal(state.times(lost, 5000), nbsp("This_is_what_was_true_4 s_ago._Next_try_in_2 s."));
  assert.equal(state.failed(lost, { status: 503, code: "", detail: "" }, 0, 9000, true).lastGood, 1000);
});

test("a row that is only not shown any more has not ended", () => {
  assert.equal(ended("b", { sameSearch: true, more: false, lastName: "a" }), true);
  assert.equal(ended("b", { sameSearch: true, more: true, lastName: "c" }), true);
  assert.equal(ended("d", { sameSearch: true, more: true, lastName: "c" }), false);
  assert.equal(ended("b", { sameSearch: true, more: true, lastName: null }), false);
  assert.equal(ended("b", { sameSearch: false, more: false, lastName: null }), false);
});

test("the command of the empty page can be pasted", () => {
  assert.match(curlLine("http://127.0.0.1:8080"), /^curl -X POST http:\/\/127\.0\.0\.1:8080\/locks\/demo \\\n/);
  assert.match(curlLine("http://[::1]:8080"), /'http:\/\/\[::1\]:8080\/locks\/demo'/);
});

test("a row sums up several holders", () => {
  const holder = (owner, deadline, acquired, token) => ({ owner, deadline, acquired_at: acquired, fencing_token: token });
  const one = holder("ann", 10, "2026-11-20T14:00:02.000Z", 7);
  assert.deepEqual(holding({ holders: [one], holder_count: 1 }), { longest: one, first: one, token: 7, who: "ann", others: "", shared: "shared" });
  const two = holder("", 30, "2026-11-20T14:00:01.000Z", 9);
  assert.deepEqual(holding({ holders: [one, two], holder_count: 200 }), { longest: two, first: two, token: 9, who: "200 holders", others: "ann, \u2014", shared: "shared" });
  const limited = [{ ...one, limit: 5 }, { ...two, limit: 3 }];
  assert.equal(holding({ holders: limited, holder_count: 2 }).who, "2 of 3 holders");
  assert.equal(holding({ holders: [limited[1]], holder_count: 1 }).shared, "shared, 1 of 3");
  limited[1].permits = 2;
  assert.equal(holding({ holders: [limited[1]], holder_count: 1 }).shared, "shared, 2 of 3");
  assert.equal(holding({ holders: limited, holder_count: 2 }).who, "2 holders");
});

test("the slots of a holder are said in ranges", () => {
  assert.equal(slots({ slot: 3 }), "slot 3");
  assert.equal(slots({ slot: 0, permits: 5, slots: [0, 2, 3, 4, 9] }), "5 permits, slots 0, 2-4, 9");
  assert.equal(slots({ slot: 0, permits: 100, slots: [0, 1, 2] }), "100 permits, slots 0-2, \u2026");
});
