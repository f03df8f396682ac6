// What is read, and when: under node's own test runner, with time that is moved.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Agenda } from "../js/agenda.js";
import { ApiError } from "../js/api.js";
import { backoff } from "../js/pause.js";
import * as shown from "../js/shown.js";
import { Source } from "../js/source.js";
import { change, Parser } from "../js/sse.js";
import { silenceMs, Stream } from "../js/stream.js";

// settle lets all promises that can go on do so.
const settle = () => new Promise((resolve) => setImmediate(resolve));

function deferred() {
  const d = {};
  d.promise = new Promise((resolve, reject) => Object.assign(d, { resolve, reject }));
  return d;
}

// never is a stream that says nothing.
const never = { events: () => new Promise(() => {}) };

test("a gateway that is away is asked every two seconds, or when it has asked for, within reason", () => {
  const [first, last] = [() => 0, () => 0.999];
  assert.deepEqual([1, 2, 3, 50].map((n) => backoff(n, 0, first)), [1000, 2000, 2000, 2000]);
  assert.ok(backoff(1, 0, last) > 700 && backoff(50, 0, last) < 1600, "many pages don't come back at once");
  assert.equal(backoff(1, 5000), 5000);
  assert.equal(backoff(1, 600_000), 15_000);
});

const page = (names, next) => ({ sent: 0, body: { locks: names.map((name) => ({ name, holders: [] })), next_cursor: next } });

test("a search goes on, one page at a time, until it is through, and says how far it is", async (t) => {
  const clock = clockwork(t);
  const asked = [];
  const names = 45_000;
  const api = { ...never, listPage: async ({ limit, cursor, total, filter }) => {
    if (Object.keys(filter ?? {}).length > 0) return page([], undefined);
    asked.push({ at: clock.at, limit, total });
    const sent = clock.at;
    clock.at += 20;
    const to = Math.min(names, Number(cursor || 0) + 10 * limit);
    return { sent, body: { ...page(to === names ? ["found"] : [], to < names ? String(to) : undefined).body, total: total ? names : undefined } };
  } };
  const seen = [];
  const source = new Source(api, { onData: ({ list }) => seen.push(list), onFailure: assert.fail, now: clock.now });
  t.after(() => source.pause());
  source.watch({ q: "x", prefix: "", wanted: 100, name: null });
  source.resume();
  await clock.pass(5000);
  const of = (query) => seen.filter(({ looked }, i) => seen.findIndex((other) => other.looked === looked) === i).map(query);
  assert.deepEqual(of(({ looked }) => Math.min(looked, names)), [1000, 11_000, 21_000, 31_000, 41_000, names]);
  assert.ok(seen.every(({ total }) => total === names));
  assert.deepEqual([seen.at(-1).locks.map(({ name }) => name), seen.at(-1).reading, seen.at(-1).more], [["found"], false, false]);
  for (let i = 1; i < asked.length; i++) assert.ok(asked[i].at - asked[i - 1].at >= 100, "the gateway is left in peace");
});

test("more is shown from the cursor on", async (t) => {
  const clock = clockwork(t);
  const asked = [];
  const api = { ...never, listPage: async ({ limit, cursor, filter }) => {
    if (Object.keys(filter ?? {}).length > 0) return page([], undefined);
    asked.push(cursor);
    const from = Number(cursor || 0);
    return page(Array.from({ length: limit }, (_, i) => `n${String(from + i).padStart(6, "0")}`), String(from + limit));
  } };
  let list = null;
  const source = new Source(api, { onData: (data) => { list = data.list; }, onFailure: assert.fail, now: clock.now });
  t.after(() => source.pause());
  const query = { q: "n", prefix: "", wanted: 100, name: null };
  source.watch(query);
  source.resume();
  await clock.pass(1000);
  assert.deepEqual([asked.splice(0), list.locks.length, list.more, list.reading], [[""], 100, true, false]);
  source.watch({ ...query, wanted: 1000 });
  await clock.pass(1000);
  assert.deepEqual([asked.splice(0), list.locks.length, list.more], [["100"], 1100, true]);
});

test("watching something else aborts the request under way, and its answer is not shown", async () => {
  const signals = [];
  const answers = [];
  const api = { ...never,
    listPage: (query, signal) => new Promise((resolve, reject) => {
      signals.push(signal);
      answers.push(() => resolve(page([query.q], "")));
      signal.addEventListener("abort", () => reject(signal.reason));
    }),
  };
  const seen = [];
  const done = deferred();
  const source = new Source(api, {
    onData: ({ list }) => { seen.push(list.locks[0].name); source.pause(); done.resolve(); },
    onFailure: done.reject,
  });
  source.watch({ q: "first", wanted: 1, name: null }); // paused: nothing is asked
  assert.equal(signals.length, 0);
  source.resume();
  source.watch({ q: "second", wanted: 1, name: null });
  assert.deepEqual(signals.map((signal) => signal.aborted), [true, false]);
  answers[0]();
  answers[1]();
  await done.promise;
  assert.deepEqual(seen, ["second"]);
});

test("a refused name is an answer, a failing store is not", async () => {
  const run = (error) => new Promise((resolve) => {
    const api = { ...never, listPage: async () => page([], ""), lock: async () => { throw new ApiError(error); } };
    const source = new Source(api, {
      onData: ({ detail }) => { source.pause(); resolve(detail); },
      onFailure: (failure, pause) => { source.pause(); resolve([failure.status, pause]); },
    });
    source.watch({ q: "", wanted: 1, name: "a" });
    source.resume();
  });
  assert.deepEqual(await run({ status: 400, detail: "no" }), { problem: "no" });
  assert.deepEqual(await run({ status: 503, retryAfterMs: 3000 }), [503, 3000]);
});

// clockwork mocks the timers and gives a clock that they move.
function clockwork(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const clock = { at: 0, now: () => clock.at };
  clock.pass = async (ms) => {
    for (let left = ms; left > 0; left -= 10) {
      clock.at += Math.min(10, left);
      t.mock.timers.tick(Math.min(10, left));
      await settle();
    }
    await settle();
  };
  return clock;
}

// gateway is an api over locks in a map, which counts what it is asked and has a
// stream to speak through; say is null while none is open.
function gateway(locks) {
  const g = { locks, lists: 0, rows: 0, inspected: 0, refuse: null, fail: null, say: null };
  const view = (name) => ({
    name, held: true, waiting: 0,
    holders: [{ owner: "", lease: "L", fencing_token: 1, ttl_ms: 3_600_000, expires_in_ms: 3_600_000, ...locks.get(name) }],
  });
  g.api = {
    listPage: async ({ prefix, limit }) => {
      if (prefix) g.rows++;
      else g.lists++;
      if (g.fail) throw new ApiError(g.fail);
      const names = [...locks.keys()].filter((name) => name.startsWith(prefix ?? "")).sort();
      return { sent: g.now(), body: { locks: names.slice(0, limit).map(view), next_cursor: names.length > limit ? "on" : undefined } };
    },
    lock: async (name) => {
      g.inspected++;
      if (g.fail) throw new ApiError(g.fail);
      return { sent: g.now(), at: 0, body: locks.has(name) ? view(name) : { name, held: false, holders: [], waiting: 0 } };
    },
    history: async () => ({ sent: g.now(), body: { grants: [] } }),
    events: async (signal) => {
      if (g.refuse) throw new ApiError(g.refuse);
      return (async function* stream() {
        let next;
        g.cut = () => next.reject(new ApiError({}));
        signal.addEventListener("abort", g.cut);
        for (;;) {
          next = deferred();
          g.say = next.resolve;
          yield await next.promise;
        }
      })();
    },
  };
  g.event = (kind, name) => g.say(`event: ${kind}\ndata: ${JSON.stringify({ name, lease: "L", owner: "" })}\n\n`);
  return g;
}

async function watch(t, g, query = {}) {
  const clock = clockwork(t);
  g.now = clock.now;
  const seen = { data: null, failures: [], gaps: 0 };
  const source = new Source(g.api, {
    onData: (data) => { seen.data = data; }, onFailure: (error, pause) => seen.failures.push([error.status, pause]),
    onGap: () => { seen.gaps++; }, now: clock.now,
  });
  source.watch({ q: "", wanted: 100, name: null, ...query });
  t.after(() => source.pause());
  return { source, clock, seen, names: () => seen.data.list.locks.map(({ name }) => name).join() };
}

const minute = 60_000;

test("with events nothing is asked but the check of every twenty seconds", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  const { source, clock, seen } = await watch(t, g);
  await clock.pass(minute);
  assert.equal(g.lists, 0, "paused from the start");
  source.resume();
  await clock.pass(1000);
  assert.equal(g.lists, 2, "once at once, once when the stream had opened");
  await clock.pass(19_000);
  assert.equal(g.lists, 2);
  await clock.pass(2000);
  assert.equal(g.lists, 3);
  assert.equal(seen.data.asking, false);
  source.pause();
  await clock.pass(10 * minute);
  assert.equal(g.lists, 3, "paused");
});

test("an event costs the row of its name; thousands cost four a second", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  const { source, clock, names } = await watch(t, g);
  source.resume();
  await clock.pass(1000);
  g.locks.set("b", {});
  g.event("granted", "b");
  await clock.pass(100);
  assert.deepEqual([g.rows, names()], [1, "a,b"]);
  g.locks.delete("b");
  g.event("released", "b");
  await clock.pass(300);
  assert.deepEqual([g.rows, names()], [2, "a"]);

  g.rows = 0;
  for (let i = 0; i < 200; i++) {
    g.event(i % 2 ? "released" : "granted", "a");
    await clock.pass(10);
  }
  assert.ok(g.rows >= 7 && g.rows <= 9, `${g.rows} requests in 2 s`);
  assert.equal(g.lists, 2);
});

test("many names at once cost one list a second", async (t) => {
  const g = gateway(new Map());
  const { source, clock, names } = await watch(t, g);
  source.resume();
  await clock.pass(2000);
  const lists = g.lists;
  for (let i = 0; i < 300; i++) {
    const name = `n${String(i % 30).padStart(2, "0")}`;
    g.locks.set(name, {});
    g.event("granted", name);
    await clock.pass(10);
  }
  await clock.pass(1100);
  assert.ok(g.lists - lists >= 3 && g.lists - lists <= 5, `${g.lists - lists} lists in 4 s`);
  assert.ok(g.rows <= 8, `${g.rows} requests for rows`);
  assert.equal(names().split(",").length, 30);
});

test("resync has everything read again, once a second", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  const { source, clock, seen } = await watch(t, g, { name: "a" });
  source.resume();
  await clock.pass(2000);
  assert.equal(seen.gaps, 1, "events have begun");
  const before = [g.lists, g.inspected];
  g.say("event: resync\ndata: {}\n\n");
  await clock.pass(100);
  assert.deepEqual([g.lists, g.inspected], before.map((n) => n + 1));
  assert.equal(seen.gaps, 2);
  for (let i = 0; i < 80; i++) {
    g.say("event: resync\ndata: {}\n\n");
    await clock.pass(10);
  }
  assert.equal(g.lists, before[0] + 1);
  await clock.pass(200);
  assert.equal(g.lists, before[0] + 2);
});

test("without a search the lock that is open is asked for once, row and all", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  const { source, clock, names } = await watch(t, g, { name: "a" });
  source.resume();
  await clock.pass(1000);
  const inspected = g.inspected;
  g.event("queued", "a");
  await clock.pass(100);
  assert.deepEqual([g.inspected - inspected, g.rows, names()], [1, 0, "a"]);
  g.locks.delete("a");
  g.event("released", "a");
  await clock.pass(300);
  assert.equal(names(), "");
});

test("without events it asks every two seconds, and takes the stream when it can be had", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  g.refuse = { status: 429, retryAfterMs: 3000 };
  const { source, clock, seen } = await watch(t, g);
  source.resume();
  await clock.pass(2900);
  assert.equal(seen.data.asking, true);
  assert.ok(g.lists >= 2 && g.lists <= 3, `${g.lists} lists`);
  g.refuse = null;
  await clock.pass(1000);
  assert.equal(seen.data.asking, false);
  const lists = g.lists;
  await clock.pass(10_000);
  assert.equal(g.lists, lists);
});

test("a gateway that was away for long is live within three seconds of being back, at little cost meanwhile", async (t) => {
  const g = gateway(new Map([["a", {}]]));
  const { source, clock, seen } = await watch(t, g);
  source.resume();
  await clock.pass(10_000);
  [g.fail, g.refuse] = [{}, {}];
  g.cut();
  const before = g.lists;
  await clock.pass(minute);
  assert.ok(seen.failures.length >= 29 && seen.failures.length <= 42, `${seen.failures.length} failures in a minute`);
  assert.equal(g.lists - before, seen.failures.length, "one request each");
  assert.ok(seen.failures.every(([, pause]) => pause <= 2000));
  [g.fail, g.refuse] = [null, null];
  g.say = null;
  await clock.pass(3000);
  assert.equal(seen.data.asking, false);
  assert.notEqual(g.say, null);
  const lists = g.lists;
  await clock.pass(10_000);
  assert.equal(g.lists, lists, "it is live again");
});

test("one turn at a time, however slow the answer", async (t) => {
  const clock = clockwork(t);
  let requests = 0;
  let answer = null;
  const api = { ...never, listPage: () => { requests++; return new Promise((resolve) => { answer = () => resolve(page([], "")); }); } };
  const source = new Source(api, { onData() {}, onFailure() {}, now: clock.now });
  source.watch({ q: "", wanted: 1, name: null });
  source.resume();
  await clock.pass(minute);
  assert.equal(requests, 1);
  answer();
  await clock.pass(1000);
  assert.equal(requests, 1);
  await clock.pass(minute);
  assert.equal(requests, 2, "as long in peace as the answer took");
  source.pause();
  answer();
});

test("a stream without a word is dead", async (t) => {
  const clock = clockwork(t);
  let opened = 0;
  const lost = [];
  let say = () => {};
  const connect = async (signal) => {
    opened++;
    return (async function* stream() {
      for (;;) {
        yield await new Promise((resolve, reject) => {
          say = resolve;
          signal.addEventListener("abort", () => reject(new ApiError({})));
        });
      }
    })();
  };
  const stream = new Stream(connect, { onOpen() {}, onChange() {}, onResync() {}, onLost: (how) => lost.push(how), now: clock.now });
  stream.start();
  t.after(() => stream.stop());
  await clock.pass(silenceMs - 1000);
  say(": heartbeat\n\n");
  await clock.pass(silenceMs - 1000);
  assert.deepEqual([opened, lost], [1, []]);
  await clock.pass(2000);
  assert.deepEqual([opened, lost], [2, [{ again: true }]], "it may only have been asleep");
  await clock.pass(silenceMs);
  assert.deepEqual([opened, lost.at(-1)], [2, { again: false }], "one that never spoke is held back by something");
  await clock.pass(minute - 1000);
  assert.equal(opened, 2);
  await clock.pass(1000);
  assert.equal(opened, 3);
});

test("events are read whatever the pieces they come in", () => {
  const text = ": hello\n\nid: 7\r\nevent: granted\r\ndata: {\"name\":\r\ndata: \"a\"}\r\n\r\nevent:resync\ndata: {}\n\nevent: half";
  const want = [{ event: "granted", data: '{"name":\n"a"}' }, { event: "resync", data: "{}" }];
  for (let size = 1; size <= text.length; size++) {
    const parser = new Parser();
    const got = [];
    for (let at = 0; at < text.length; at += size) got.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(got, want, `pieces of ${size}`);
  }
});

test("only events of locks are changes", () => {
  assert.deepEqual(change({ event: "left", data: '{"name":"a","lease":"L","owner":"o"}' }), { kind: "left", name: "a", lease: "L", owner: "o", mode: "exclusive", token: 0, at: "", took: 0 });
  assert.deepEqual(["granted", "expired"].map((event) => change({ event, data: '{"name":"a","lease":"L","waited_ms":7}'.replace("waited", event === "granted" ? "waited" : "held") }).took), [7, 7]);
  for (const odd of [{ event: "resync", data: "{}" }, { event: "granted", data: "{" }, { event: "granted", data: '{"name":7}' }, { event: "granted", data: "null" }]) {
    assert.equal(change(odd), null, odd.data);
  }
});

test("an answer about one name finds its place", () => {
  const list = (names, more = false) => ({ locks: names.map((name) => ({ name })), more });
  const after = (of, name, lock, wanted) => { const { locks, more, short } = shown.place(of, [[name, lock]], wanted); return [locks.map(({ name }) => name).join(""), more, short]; };
  assert.deepEqual(after(list(["a", "c"]), "b", { name: "b" }, 9), ["abc", false, false]);
  assert.deepEqual(after(list(["a", "c"]), "d", { name: "d" }, 9), ["acd", false, false]);
  assert.deepEqual(after(list(["a", "c"], true), "d", { name: "d" }, 2), ["ac", true, false], "beyond the page");
  assert.deepEqual(after(list(["a", "c"]), "b", { name: "b" }, 2), ["ab", true, false], "the last makes room");
  assert.deepEqual(after(list(["a", "c"], true), "a", null, 2), ["c", true, true], "another has to move up");
  assert.deepEqual(after(list(["a", "c"]), "x", null, 2), ["ac", false, false]);
});

test("a lease is read again before it would look like lost", () => {
  const lock = (deadline) => ({ holders: [{ deadline, ttl_ms: 30_000 }] });
  assert.equal(shown.due(lock(30_000), 0), 18_000);
  assert.equal(shown.due(lock(30_000), 18_000), 24_000);
  assert.equal(shown.due(lock(30_000), 24_000), 30_000);
  assert.equal(shown.due(lock(30_000), 31_000), 33_000);
  assert.equal(shown.due({ holders: [] }, 0), Infinity);
  const agenda = new Agenda({ q: "", wanted: 100, name: null });
  const list = { locks: [{ name: "a", ...lock(30_000) }], more: false };
  agenda.done(agenda.plan(null, 0), list.locks, 0, 0, true);
  assert.equal(agenda.plan(list, 17_999), null);
  assert.deepEqual(agenda.plan(list, 18_000).names, ["a"]);
});
