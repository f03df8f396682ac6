// What is known of the store, and when it is asked for: under node's own test
// runner, with timers that are moved.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { ApiError } from "../js/api.js";
import { condition, endangered, everyMs, Health, held, left, read, restMs, sentence, summary } from "../js/health.js";

const settle = () => new Promise((resolve) => setImmediate(resolve));

const check = (name, fields) => ({ name, ok: false, promise: "P1", detail: "d", remedy: "r", ...fields });

test("the same fault of several servers is one danger", () => {
  const { dangers, till } = read({ checks: [
    { name: "store", ok: true, took_ms: 1 }, { name: "quarantine", ok: true, remaining_ms: 0 },
    check("eviction", { node: "a" }), check("eviction", { node: "b" }), check("eviction", { node: "c", ok: true, promise: undefined }),
    check("clock", { promise: "P1, P2" }), check("replicas", { promise: undefined }),
  ] }, 0);
  assert.deepEqual(dangers.map(({ promise, nodes }) => [promise, nodes]), [["P1", ["a", "b"]], ["P1, P2", []]]);
  assert.equal(till, null);
});

test("a quarantine ends at the latest so long after the answer came", () => {
  const { till } = read({ checks: [{ name: "quarantine", ok: false, remaining_ms: 4200 }] }, 1000);
  assert.equal(till, 5200);
  assert.equal(left(till, 1000), "For at most 5\u00a0s.");
  assert.equal(left(till, 5199), "For at most 1\u00a0s.");
  assert.equal(left(till, 5200), "Any moment now.");
});

test("a gateway that grants nothing because of a danger says so", () => {
  const store = { name: "store", ok: true }, accepting = { name: "accepting", ok: true };
  const refused = (code, ...checks) => read({ code, checks }, 0).refused;
  assert.equal(refused("unavailable", store, accepting, check("eviction")), true);
  assert.equal(refused(undefined, store, accepting, check("eviction")), false); // ready
  assert.equal(refused("unavailable", store, accepting, check("replicas", { promise: undefined })), false);
  assert.equal(refused("unavailable", { ...store, ok: false }, accepting, check("eviction")), false); // out of reach
  assert.equal(refused("draining", store, { ...accepting, ok: false }, check("eviction")), false);
  assert.match(summary([{}], true), /promise\. This gateway grants nothing until this is put right\.$/);
  assert.equal(summary([], true), "");
});

test("what the store refuses is told with its remedy", () => {
  const refusal = (...checks) => read({ checks }, 0).refusal;
  assert.deepEqual(refusal(check("store", { detail: "d", remedy: "r" })), { detail: "d", remedy: "r" });
  assert.equal(refusal(check("store", { remedy: undefined })), null); // out of reach
  assert.equal(refusal({ name: "store", ok: true }, check("eviction")), null);
  assert.ok(refusal(check("store", { detail: "x".repeat(10000) })).detail.length < 500);
});

test("words", () => {
  assert.equal(held(5200, 1000), "No new leases are granted for at most another 5\u00a0s.");
  assert.equal(held(1000, 1000), "New leases are granted any moment now.");
  assert.equal(endangered("P1, P2"), "One live lease, Growing tokens");
  assert.equal(endangered("P9"), "P9");
  assert.equal(sentence("its clock is behind"), "Its clock is behind.");
  assert.equal(sentence(""), "");
  assert.equal(summary([]), "");
  assert.match(summary([{}, {}, {}]), /^3 findings /);
  const how = (looks, took = 3) => condition({ dangers: [], till: null, refusal: null, store: { kind: "embedded", took, looks } });
  assert.equal(how(1), "The store (embedded) answered in 3 ms. 1 check of its setup found no danger to the locks.");
  assert.match(how(7), / 7 checks of its setup found no danger to the locks\.$/);
  assert.match(how(1, 0), / answered in less than 1 ms\./);
  assert.match(how(0), / Its setup has not been checked yet\.$/);
});

// looking is a Health on an api whose answers are the functions given, the last
// for ever, with the times of its requests.
function looking(...answers) {
  mock.timers.enable({ apis: ["setTimeout"] });
  let now = 0;
  const at = [];
  const found = [];
  const api = { readiness: async () => {
    at.push(now);
    return (answers.length > 1 ? answers.shift() : answers[0])();
  } };
  const health = new Health(api, { onData: (data) => found.push(data), now: () => now });
  const pass = async (ms) => {
    for (const end = now + ms; now < end;) {
      now += 100;
      mock.timers.tick(100);
      await settle();
    }
  };
  return { health, at, found, pass };
}

const calm = () => ({ body: { checks: [] } });

test("it is asked for every half a minute, and when something may have changed", async () => {
  const { health, at, pass } = looking(calm);
  try {
    health.look(); // nobody looks
    await pass(1000);
    assert.deepEqual(at, []);
    health.resume();
    health.resume();
    await pass(100);
    assert.equal(at.length, 1);
    for (let i = 0; i < 5; i++) health.look();
    await pass(2000);
    assert.equal(at.length, 2);
    assert.ok(at[1] - at[0] >= restMs);
    await pass(everyMs - 1500);
    assert.equal(at.length, 2);
    await pass(1500);
    assert.equal(at.length, 3);
    health.pause();
    await pass(3 * everyMs);
    assert.equal(at.length, 3);
  } finally {
    mock.timers.reset();
  }
});

test("the end of a quarantine is looked for when it is due", async () => {
  const { health, at, found, pass } = looking(() => ({ body: { checks: [{ name: "quarantine", ok: false, remaining_ms: 5000 }] } }), calm);
  try {
    health.resume();
    await pass(5000);
    assert.equal(at.length, 1);
    await pass(1000);
    assert.equal(at.length, 2);
    assert.equal(found.at(-1).till, null);
  } finally {
    mock.timers.reset();
  }
});

test("no answer changes nothing, and is asked for again", async () => {
  const { health, at, found, pass } = looking(() => { throw new ApiError(); }, calm);
  try {
    health.resume();
    await pass(everyMs - 1000);
    assert.deepEqual([at.length, found.length], [1, 0]);
    await pass(2000);
    assert.deepEqual([at.length, found.length], [2, 1]);
  } finally {
    mock.timers.reset();
  }
});
