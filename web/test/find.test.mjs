// Finding one lock among many: order, filters, what events tell of a long list, and how
// that is read in parts.

import assert from "node:assert/strict";
import { test } from "node:test";

import * as arranging from "../js/arrange.js";
import { Agenda, maxNames, partLocks } from "../js/agenda.js";
import { ApiError } from "../js/api.js";
import { barMs, howLong, howMany, line, rate, Rates } from "../js/figures.js";
import { Endings, slots, windowOf } from "../js/list.js";
import { everything } from "../js/route.js";
import * as shown from "../js/shown.js";
import { run, sliceLocks, sorted } from "../js/slices.js";
import { Spans } from "../js/spans.js";
import { page } from "../js/pages.js";
import { Source } from "../js/source.js";
import { first, leaders, nearMs, roundMs, Walk } from "../js/walk.js";

const { narrowing, orders, plain, spanMs } = arranging;

// all does the steps of a generator, and counts them.
function all(steps) {
  for (let count = 1; ; count++) {
    const { done, value } = steps.next();
    if (done) return { value, count };
  }
}
const arrange = (...of) => all(arranging.arrange(...of)).value;
const branches = (...of) => all(arranging.branches(...of)).value;

const lock = (name, part = {}, of = {}) => ({
  name, mode: "exclusive", waiting: 0, holder_count: 1, ...of,
  holders: [{ lease: `L-${name}`, owner: "", fencing_token: 1, deadline: 30_000, ttl_ms: 30_000, acquiredMark: 0, renewedMark: null, ...part }],
});
const names = (locks) => locks.map(({ name }) => name).join("");

const some = [
  lock("a", { acquiredMark: -5000, owner: "zoe", fencing_token: 9, deadline: 20_000 }, { waiting: 2, waitedMark: -9 }),
  lock("b", { acquiredMark: -700_000, owner: "ann", fencing_token: 3, deadline: 5000, renewedMark: -1 }),
  lock("c", { acquiredMark: -5000, owner: "bob", fencing_token: 5, deadline: Infinity, ttl_ms: 0, limit: 3, attached: true }, { mode: "shared", waiting: 7, waitedMark: -3 }),
];

test("every order there is, both ways, with equals by name", () => {
  const want = { name: "abc", owner: "bca", held: "bac", queue: "cab", waits: "acb", remaining: "bac", token: "bca" };
  for (const sort of orders) {
    const by = sort.replace("-", "");
    assert.ok(want[by], sort);
    assert.equal(names(arrange(some, { ...everything, sort }, 0)), sort === by ? want[by] : { ...Object.fromEntries(Object.entries(want).map(([k, v]) => [k, [...v].reverse().join("")])), held: "acb" }[by], sort);
  }
});

test("filters", () => {
  const cases = [
    [{}, "abc"], [{ held: "10m" }, "b"], [{ held: "5s" }, "abc"], [{ held: "6s" }, "b"], [{ waited: true }, "ac"], [{ expiring: true }, "b"],
    [{ unrenewed: true }, "ac"], [{ attached: true }, "c"], [{ mode: "exclusive" }, "ab"], [{ mode: "shared" }, "c"], [{ mode: "permits" }, "c"], [{ waited: true, sort: "queue" }, "ca"],
  ];
  for (const [route, want] of cases) assert.equal(names(arrange(some, { ...everything, ...route }, 0)), want, JSON.stringify(route));
  assert.ok(plain(everything));
  assert.deepEqual(["10m", "2h", "0m", "x", "5"].map(spanMs), [600_000, 7_200_000, 0, 0, 0]);
});

test("branches are counted by what follows a prefix", () => {
  const of = ["a", "b/1", "b/2/x", "b/2/y", "c/1"].map((name) => ({ name }));
  assert.deepEqual(branches(of, ""), { branches: [{ prefix: "b/", count: 3 }, { prefix: "c/", count: 1 }], others: 0, leaves: 1 });
  assert.deepEqual(branches(of, "b/"), { branches: [{ prefix: "b/2/", count: 2 }], others: 0, leaves: 1 });
  const wide = Array.from({ length: 100 }, (_, i) => ({ name: `${String(i).padStart(2, "0")}/x` })).concat({ name: "99/y" });
  const { branches: most, others } = branches(wide, "");
  assert.deepEqual([most.length, most[0], most[1], most[39].prefix, others], [40, { prefix: "99/", count: 2 }, { prefix: "00/", count: 1 }, "38/", 60]);
});

// looked counts how often a lock of an array was looked at.
function watched(locks) {
  const counter = { looked: 0 };
  counter.locks = new Proxy(locks, { get: (of, key) => { if (typeof key === "string" && /^\d/.test(key)) counter.looked++; return of[key]; } });
  return counter;
}

test("no step of arranging very many locks is long, whatever the order and the filters", () => {
  const count = 30_000;
  const many = Array.from({ length: count }, (_, i) => lock(`n${String(i).padStart(6, "0")}/x`, { owner: `o${i * 7919 % count}`, acquiredMark: -(i * 7919 % count), deadline: i % 5 === 0 ? Infinity : i * 31 % 9973, fencing_token: i * 17 % 99_991 }, { waiting: i % 7 }));
  const works = [...orders.map((sort) => ({ sort })), { expiring: true }, { sort: "held", unrenewed: true, waited: true }].map((of) => [JSON.stringify(of), (locks) => arranging.arrange(locks, { ...everything, ...of }, 0)]);
  works.push(["tree", (locks) => arranging.branches(locks, "")]);
  for (const [what, of] of works) {
    const counter = watched(many);
    const steps = of(counter.locks);
    let count = 0;
    for (let step = { done: false }; !step.done; count++) {
      counter.looked = 0;
      step = steps.next();
      assert.ok(counter.looked <= 2 * sliceLocks, `${what}: ${counter.looked} locks at once`);
    }
    assert.ok(what.includes('"name"') || count >= many.length / sliceLocks, `${what}: ${count} steps`);
  }
});

test("what is sorted in slices is sorted, and no slice is long", () => {
  for (const length of [0, 1, 2, sliceLocks, sliceLocks + 1, 5 * sliceLocks + 77]) {
    const values = Array.from({ length }, (_, i) => i * 7919 % 50_021);
    const { value, count } = all(sorted(Float64Array.from(values)));
    assert.deepEqual([...value], values.toSorted((a, b) => a - b));
    assert.ok(count >= length / sliceLocks * Math.max(1, Math.log2(length / sliceLocks)), `${count} steps`);
    const texts = values.map((v) => `\u00e9${v}`);
    assert.deepEqual(all(sorted([...texts])).value, texts.toSorted());
  }
});

test("long work lets others come between, and can be given up", () => {
  const clock = { at: 0 };
  const paused = [];
  const by = { now: () => clock.at, pause: (go) => paused.push(go) };
  const work = function* work(steps) {
    for (let i = 0; i < steps; i++, clock.at += 3) yield;
    return "done";
  };
  const got = [];
  assert.equal(run(work(2), (...what) => got.push(what), by), null, "short work is done at once");
  assert.deepEqual(got.splice(0), [["done", 6]]);
  assert.notEqual(run(work(7), (...what) => got.push(what), by), null);
  let turns = 1;
  for (; paused.length > 0; turns++) paused.shift()();
  assert.deepEqual([turns, got.splice(0)], [3, [["done", 21]]]);
  run(work(7), (...what) => got.push(what), by)();
  while (paused.length > 0) paused.shift()();
  assert.deepEqual(got, []);
});

test("however many locks change, all are copied once", () => {
  const many = Array.from({ length: 20_000 }, (_, i) => lock(`n${String(i).padStart(6, "0")}`));
  const rows = many.slice(5000, 5008).map((of, i) => [of.name, i % 2 ? null : lock(of.name)]);
  const events = many.slice(0, 1000).map(({ name }) => ({ kind: "queued", name, lease: "L", owner: "", mode: "exclusive", token: 1, at: "" }));
  for (const of of [(list) => shown.place(list, rows, 100_000), (list) => shown.apply(list, events, { q: "" }, 0)]) {
    const counter = watched(many);
    of({ locks: counter.locks, more: false });
    assert.ok(counter.looked < many.length + 1008 * 40, `${counter.looked} looks at ${many.length} locks`);
  }
});

test("however many leases end, only the rows that are drawn are told how", () => {
  const known = Array.from({ length: 5000 }, (_, i) => lock(`n${String(i).padStart(6, "0")}`));
  const drawn = new Map(known.slice(40, 60).map(({ name }) => [name, {}]));
  const endings = new Endings();
  for (const { name } of known) endings.note(new Map([[name, "expired"]]), drawn);
  assert.equal(endings.size, drawn.size);
  assert.deepEqual([endings.of(known[50].name), endings.of(known[0].name)], ["expired", undefined]);
  drawn.delete(known[40].name); // scrolled away
  endings.keep(drawn, known.filter(({ name }) => name !== known[41].name));
  assert.deepEqual([endings.size, endings.of(known[40].name), endings.of(known[41].name), endings.of(known[42].name)], [18, undefined, undefined, "expired"]);
});

test("the gateway is asked for what it can look for", () => {
  assert.deepEqual(narrowing({ ...everything, expiring: true, sort: "held" }), {});
  assert.deepEqual(narrowing({ ...everything, unrenewed: true, attached: true }), { unrenewed: true, attached: true });
  assert.deepEqual(narrowing({ ...everything, held: "10m", mode: "shared", waited: true }), { mode: "shared", held_for_ms: 600_000, waiting: true });
  assert.deepEqual(narrowing({ ...everything, held: "90d", mode: "permits" }), { mode: "shared", held_for_ms: 30 * 86_400_000 });
});

test("what an event tells of may belong to what is asked for", () => {
  const event = (kind, mode = "exclusive") => ({ kind, name: "a", owner: "ann", lease: "L", mode });
  const cases = [
    [{}, event("granted"), true], [{}, event("queued"), false], [{ mode: "shared" }, event("granted"), false], [{ mode: "shared" }, event("granted", "shared"), true],
    [{ held_for_ms: 1000 }, event("granted"), false], [{ waiting: true }, event("granted"), true], [{ waiting: true }, event("queued"), true], [{ waiting: true }, event("left"), false],
  ];
  for (const [filter, what, want] of cases) assert.equal(shown.matches({ q: "AN", filter }, what), want, JSON.stringify([filter, what.kind]));
  assert.equal(shown.matches({ q: "bob" }, event("granted")), false);
  assert.deepEqual([{}, { unrenewed: true }, { waiting: true }, { attached: true }].map((filter) => shown.tells({ filter })), [true, true, false, false]);
});

test("a part of a list takes the place of what stood there", () => {
  const of = (text) => [...text].map((name) => ({ name }));
  const cases = [["acegi", "", "bc", "c", "bcegi"], ["acegi", "c", "d", "g", "acdi"], ["acegi", "e", "", null, "ace"], ["", "", "ab", "b", "ab"], ["ac", "c", "de", null, "acde"], ["abc", "b", "", "b", "abc"]];
  for (const [locks, after, page, upTo, want] of cases) {
    assert.equal(names(shown.splice(of(locks), after, of(page), upTo)), want, `${locks} behind ${after} up to ${upTo}`);
  }
});

test("what events tell of locks that are not read again", () => {
  const event = (kind, name, lease = `L-${name}`, more = {}) => ({ kind, name, lease, owner: "o", mode: "exclusive", token: 7, at: "2026-11-20T14:00:00.000Z", ...more });
  const list = { locks: some, more: false };
  const after = (...events) => shown.apply(list, events, { q: "" }, 1000);
  assert.equal(names(after(event("released", "b")).locks), "ac");
  assert.deepEqual(after(event("granted", "bb", "new")).locks.map(({ name }) => name), ["a", "b", "bb", "c"]);
  assert.equal(after(event("released", "nothing")), list);
  const passed = shown.find(after(event("released", "a"), event("granted", "a", "next")).locks, "a");
  assert.deepEqual([passed.holders.map(({ lease }) => lease), passed.waiting, passed.holder_count, passed.holders[0].deadline], [["next"], 1, 1, Infinity]);
  assert.equal(shown.find(after(event("queued", "b"), event("queued", "b"), event("left", "b")).locks, "b").waiting, 1);
  assert.equal(shown.find(after(event("granted", "a")).locks, "a").waiting, 2, "what is known already");
  assert.deepEqual(shown.find(after(event("notice", "b")).locks, "b"), some[1], "a notice is read with the lock");
  const both = shown.find(after(event("granted", "c", "other", { mode: "shared" })).locks, "c");
  assert.deepEqual([both.holders.length, both.holder_count], [2, 2]);
  assert.ok(shown.overdue(both, 0) && !shown.overdue(some[1], 0) && shown.overdue(some[1], 5000));
  assert.equal(names(shown.apply(list, [event("granted", "new")], { q: "xyz" }, 0).locks), "abc", "what does not match a search");
});

test("only what is in view is drawn of many", () => {
  assert.deepEqual(windowOf(40, 0, 800, 40), { from: 0, to: 40 });
  assert.deepEqual(windowOf(100_000, 300, 800, 40), { from: 0, to: 19 });
  assert.deepEqual(windowOf(100_000, -40_000, 800, 40), { from: 994, to: 1026 });
  assert.deepEqual(windowOf(1000, -40_000, 800, 40), { from: 994, to: 1000 });
  assert.deepEqual(windowOf(1000, -4_000_000, 800, 40), { from: 994, to: 1000 });
  assert.deepEqual(windowOf(1000, 0, 800, 0), { from: 0, to: 40 });
});

test("rows that are aimed at, or leaving, keep their place among all others", () => {
  const locks = (names) => [...names].map((name) => ({ name }));
  const names = (of, ...fixed) => slots(locks(of), fixed.map(([name, slot]) => ({ slot, lock: { name } }))).map(({ name }) => name).join("");
  assert.equal(names("abc"), "abc");
  assert.equal(names("bcdef", ["c", 2]), "bdcef", "one above has ended");
  assert.equal(names("0abcd", ["c", 2]), "0acbd", "one above has come");
  assert.equal(names("abd", ["c", 2]), "abcd", "it has ended itself");
  assert.equal(names("bdf", ["e", 4], ["a", 0], ["c", 2]), "abcdef");
  assert.equal(names("a", ["c", 2]), "ac", "there are too few others");
});

const settle = () => new Promise((resolve) => setImmediate(resolve));

// many is an api over so many locks, each answer of which takes 20 ms.
function many(t, count) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const clock = { at: 0 };
  const asked = [];
  const name = (i) => `n${String(i).padStart(6, "0")}`;
  const view = (i) => ({ name: name(i), held: true, waiting: 0, holder_count: 1, holders: [{ owner: "", lease: `L${i}`, fencing_token: 1, ttl_ms: 60_000, expires_in_ms: 60_000, acquired_at: "2026-11-20T14:00:00.000Z", expires_at: "2026-11-20T14:01:00.000Z" }] });
  let say = null;
  const api = {
    listPage: async ({ prefix, limit, cursor, filter }) => {
      if (filter?.expires_within_ms || filter?.waiting) return { sent: clock.at, body: { locks: [] } };
      asked.push({ at: clock.at, prefix, limit, cursor, filter });
      const sent = clock.at;
      clock.at += 20;
      if (prefix) return { sent, body: { locks: [view(Number(prefix.slice(1)))] } };
      const from = Number(cursor || 0);
      const to = Math.min(count, from + limit);
      return { sent, body: { locks: Array.from({ length: to - from }, (_, i) => view(from + i)), next_cursor: to < count ? String(to) : undefined } };
    },
    events: async () => (async function* stream() { for (;;) yield await new Promise((resolve) => { say = resolve; }); })(),
  };
  const pass = async (ms) => {
    for (let left = ms; left > 0; left -= 10) {
      clock.at += 10;
      t.mock.timers.tick(10);
      await settle();
    }
  };
  const seen = { data: null };
  const source = new Source(api, { onData: (data) => { seen.data = data; }, onFailure: assert.fail, now: () => clock.at });
  t.after(() => source.pause());
  const tell = (kind, of) => say(`event: ${kind}\ndata: ${JSON.stringify({ name: of, lease: `L${Number(of.slice(1))}`, owner: "" })}\n\n`);
  return { source, clock, asked, pass, seen, name, tell };
}

test("a long list is read in parts, at a fifth of the time, up to its bound, and then rests", async (t) => {
  const { source, asked, pass, seen } = many(t, 7300);
  source.watch({ q: "", prefix: "", wanted: 5000, name: null });
  source.resume();
  await pass(6000);
  assert.equal(seen.data.list.locks.length, 5000, "the bound");
  assert.deepEqual([seen.data.list.more, seen.data.list.reading], [true, false]);
  const pages = asked.filter(({ prefix }) => !prefix);
  assert.ok(pages.length >= 5 && pages.length <= 10, `${pages.length} pages`);
  assert.ok(pages.every(({ limit }) => limit === partLocks));
  for (let i = 2; i < pages.length; i++) assert.ok(pages[i].at - pages[i - 1].at >= 100, `${pages[i].at} ${pages[i - 1].at}`);
  const before = asked.length;
  await pass(10_000);
  assert.equal(asked.length, before, "it rests");
});

test("of a long list only what is in view is read again, and the rest is taken from events", async (t) => {
  const { source, asked, pass, seen, name, tell } = many(t, 3000);
  source.watch({ q: "", prefix: "", wanted: 100_000, name: null });
  source.resume();
  await pass(5000);
  assert.deepEqual([seen.data.list.locks.length, seen.data.list.more, seen.data.list.reading], [3000, false, false]);
  source.look([name(10), name(11)]);
  asked.length = 0;
  for (let i = 0; i < 500; i++) {
    tell("released", name(1000 + i));
    await pass(10);
  }
  await pass(400);
  assert.equal(asked.length, 0, "nothing in view has changed");
  assert.equal(seen.data.list.locks.length, 2500);
  tell("queued", name(11));
  await pass(400);
  assert.deepEqual(asked.map(({ prefix }) => prefix), [name(11)]);
});

test("a lock that comes in while a long list is read again has the last give way, and the round goes on", async (t) => {
  const { source, asked, pass, seen, tell } = many(t, 7300);
  source.watch({ q: "", prefix: "", wanted: 5000, name: null });
  source.resume();
  await pass(5000);
  const parts = () => asked.filter(({ prefix }) => !prefix);
  const first = parts().length;
  while (parts().length < first + 2) await pass(10); // the next round has begun
  tell("granted", "n0010.5");
  await pass(300);
  source.look(["n0010.5"]);
  while (parts().length < first + 5) await pass(10);
  assert.ok(parts().slice(first + 1).every(({ cursor }) => cursor !== ""), "the round does not begin anew in its middle");
  const known = seen.data.list.locks.map((lock) => lock.name);
  assert.deepEqual(known, [...new Set(known)].sort());
  assert.equal(known.length, 5000);
});

test("under a filter the gateway is asked for what meets it, in lists and rows", async (t) => {
  const { source, asked, pass, name, tell } = many(t, 50);
  const filter = { attached: true };
  source.watch({ q: "", prefix: "", filter, wanted: 100_000, name: null });
  source.resume();
  await pass(1000);
  assert.ok(asked.length > 0 && asked.every((query) => query.filter === filter));
  asked.length = 0;
  tell("granted", name(70)); // not known: events don't tell whether it is attached
  tell("released", name(71));
  await pass(500);
  assert.deepEqual(asked.map(({ prefix, filter: of }) => [prefix, of]), [[name(70), filter]]);
});

test("a store without queues has no lock that is waited for", async () => {
  const api = { listPage: async () => { throw new ApiError({ status: 400, code: "unsupported_by_store" }); } };
  const { locks, queues } = await page(api, { q: "", filter: { waiting: true } }, null);
  assert.deepEqual([locks, queues], [[], false]);
  await assert.rejects(page(api, { q: "", filter: {} }, null));
});

test("a screen of changes is read a few at a time", () => {
  const agenda = new Agenda({ q: "", prefix: "", wanted: 100_000, name: null });
  const all = Array.from({ length: 30 }, (_, i) => `n${String(i).padStart(2, "0")}`);
  const list = { locks: all.map((name) => lock(name)), more: false };
  agenda.done(agenda.plan(null, 0), [], 0, 0, true);
  agenda.look(all, list, 300);
  for (const name of all) agenda.change({ kind: "queued", name, lease: "x", owner: "" }, 300);
  const read = [];
  for (let now = 300; now < 3000; now += 50) {
    const turn = agenda.plan(list, now);
    if (turn === null) continue;
    assert.ok(turn.names.length <= maxNames);
    read.push(...turn.names);
    agenda.done(turn, [], now, now, true);
  }
  assert.deepEqual(read, all);
});

test("a round through a long list comes to its end, whatever is missed meanwhile, and the next follows", () => {
  const agenda = new Agenda({ q: "", prefix: "", wanted: 100_000, name: null });
  const list = { locks: [lock("n")], more: true };
  const flood = (now) => { for (let i = 0; i < 1001; i++) agenda.change({ kind: "queued", name: "n", lease: "x", owner: "" }, now); };
  agenda.done(agenda.plan(null, 0), [], 0, 10, true, { further: true });
  let now = 10;
  const next = (of) => {
    for (let turn = null; ; now += 50) {
      flood(now);
      turn = agenda.plan(list, now);
      if (turn?.list || turn?.part) return agenda.done(turn, [], now, now + 100, true, of), { ...turn, at: now };
      if (turn !== null) agenda.done(turn, [], now, now, true);
    }
  };
  for (let i = 0; i < 90; i++) assert.deepEqual([next({ further: true }).part, i], [true, i]);
  assert.ok(now > 40_000, "longer than the time between two rounds");
  agenda.readAll(now, 1000);
  assert.ok(next({ further: false }).part);
  const ended = now;
  const { list: again, at } = next({ further: true, known: true });
  assert.ok(again && at - ended <= 1200, `${at - ended} ms`);
  const { part, at: later } = next({ further: true, known: true });
  assert.ok(part && later - at >= 20 * 100, "what is known is read at leisure");
  agenda.readAll(now);
  assert.ok(next({ further: true, known: true }).at - later < 300, "but at once to know whether the gateway is there");
});

test("what happens is counted by the bar, and what was not heard is unknown", () => {
  const rates = new Rates();
  const event = (kind, took = 0) => ({ kind, took });
  const last = (key, n) => rates.counts(key).slice(-n);
  rates.add(event("granted"), 0);
  assert.equal(rates.perSecond("granted"), null, "no events yet");
  assert.equal(rates.advance(900), 0);
  rates.begin(1000);
  for (let i = 0; i < 40; i++) rates.add(event("granted", i % 4 === 0 ? 1000 : 0), 1000);
  rates.add(event("expired", 60_000), 1500);
  rates.add(event("broken", 60_000), 1500);
  rates.add(event("queued"), 1500);
  assert.equal(rates.perSecond("granted"), null, "the bar is not over");
  assert.equal(rates.advance(1000 + barMs), 1);
  assert.deepEqual(["granted", "handed", "released", "lost"].map((key) => rates.perSecond(key)), [20, 5, 0, 1]);
  assert.deepEqual([rates.counts("granted").length, last("granted", 2)], [60, [null, 40]], "nothing is known of before");
  assert.equal(rates.quantile("wait", 0.5), 0);
  const near = (got, want) => assert.ok(Math.abs(got / want - 1) < 0.05, `${got} is not about ${want}`);
  near(rates.quantile("wait", 0.99), 1000);
  near(rates.quantile("hold", 0.5), 60_000);
  rates.advance(1000 + 4 * barMs);
  assert.equal(rates.perSecond("granted"), 5);
  near(rates.quantile("hold", 0.99), 60_000);

  rates.silence(1000 + 4.5 * barMs);
  assert.deepEqual([rates.perSecond("granted"), rates.quantile("hold", 0.5)], [null, null], "the gateway is away");
  rates.begin(1000 + 6.5 * barMs);
  rates.add(event("granted"), 1000 + 6.7 * barMs);
  rates.advance(1000 + 8 * barMs);
  assert.deepEqual(last("granted", 8), [40, 0, 0, 0, null, null, null, 0], "a gap");
  assert.equal(rates.perSecond("granted"), 0);
  near(rates.quantile("hold", 0.5), 60_000);
  rates.begin(1000 + 8.5 * barMs); // some were missed
  rates.advance(1000 + 9 * barMs);
  assert.deepEqual(last("granted", 2), [0, null]);

  rates.advance(1000 + 60 * barMs);
  assert.equal(rates.quantile("hold", 0.5), null, "too long ago");
  assert.equal(rates.advance(1000 + 500 * barMs), 500);
  assert.deepEqual([rates.perSecond("granted"), new Set(rates.counts("granted"))], [0, new Set([0])]);
  assert.deepEqual([null, 0, 1.25, 1234.5].map(rate), ["\u2013", "0.0/s", "1.3/s", "1,235/s"]);
  assert.deepEqual([null, 0, 12.4, 999.9, 4100, 90_000].map(howLong), ["\u2013", "0\u00a0ms", "12\u00a0ms", "1000\u00a0ms", "4.1\u00a0s", "1\u00a0min 30\u00a0s"]);
  assert.deepEqual([undefined, { count: 0, more: false }, { count: 0, more: true }, { count: 1200, more: true }].map((of) => howMany(of)), ["\u2013", "0", "\u2013", "1,200+"]);
  assert.equal(line([0, 2, null, 1], 30, 10), "M0.0 9.0L10.0 1.0M30.0 5.0");
});

test("quantiles of very many spans take little room", () => {
  const spans = new Spans(3);
  assert.equal(spans.quantile(0.5), null);
  for (let i = 1; i <= 10_000; i++) spans.add(i);
  spans.add(NaN);
  spans.advance();
  for (let i = 0; i < 10_000; i++) spans.add(0);
  assert.equal(spans.quantile(0.5), 0);
  assert.ok(Math.abs(spans.quantile(0.75) / 5000 - 1) < 0.05, String(spans.quantile(0.75)));
  spans.advance();
  spans.advance();
  assert.equal(spans.quantile(1), 0);
  spans.advance();
  assert.equal(spans.quantile(1), null);
});

test("the first of an order are found in one pass", () => {
  const of = (name, waitedMark, acquiredMark, deadline) => lock(name, { acquiredMark, deadline }, { waitedMark, waiting: 1 });
  const locks = [...Array(30).keys()].map((i) => of(`l${String(i).padStart(2, "0")}`, i === 4 ? null : -(i % 7), i === 7 ? -1000 : -(i % 5), 9000 - i));
  const { waited, stuck, expiring } = leaders({ waited: { locks }, expiring: { locks } });
  assert.deepEqual([waited, stuck, expiring].map((few) => few.map(({ name }) => name.slice(1)).join(" ")), ["06 13 20 27 05", "07 04 09 14 19", "29 28 27 26 25"]);
  assert.deepEqual(first([], () => 0), []);
});

// walked is a walk over what a gateway has that answers as it is told: pages by filter, rows by name.
function walked(pages, rows = {}) {
  const asked = [];
  const view = ([name, waiting, waited, left = 60_000]) => ({
    name, waiting, waiting_ms: waited, holder_count: 1,
    holders: [{ owner: "", lease: `L-${name}`, fencing_token: 1, ttl_ms: 60_000, expires_in_ms: left, acquired_at: "2026-11-20T14:00:00.000Z", expires_at: "2026-11-20T14:01:00.000Z" }],
  });
  const api = { listPage: async ({ prefix, limit, cursor, filter, q }) => {
    asked.push(limit === 1 ? prefix : Object.keys(filter)[0] + cursor);
    if (limit === 1) return { sent: 0, body: { locks: (rows[prefix] ?? []).map(view) } };
    const of = pages[Object.keys(filter)[0]];
    const at = Number(cursor || 0);
    return { sent: 0, body: { locks: of[at].map(view), next_cursor: at + 1 < of.length ? String(at + 1) : undefined } };
  } };
  const walk = new Walk({ q: "", prefix: "" });
  const list = { locks: [lock("a")], more: true };
  return {
    asked, walk, list, api,
    run: async (now, exact = false, of = list) => { for (let i = 0; walk.nextAt(of, exact, now) <= now && i < 50; i++) await walk.step(api, null, now); },
    waited: (now) => walk.report(list, now).waited.locks.map(({ name, waiting, waitedMark }) => `${name} ${waiting} ${waitedMark}`).join(),
  };
}

test("a walk has the gateway find who waits and what is about to expire, page by page, again and again", async () => {
  const { asked, walk, run, list, waited } = walked({ waiting: [[["b", 2, 500]], [], [["d", 1, 90]]], expires_within_ms: [[["e", 0, undefined, 5000], ["f", 0, undefined, 19_999], ["g", 0, undefined, 20_001]]] });
  await run(0);
  assert.deepEqual(asked.splice(0), ["waiting", "waiting1", "waiting2", "expires_within_ms"]);
  assert.equal(waited(0), "b 2 -500,d 1 -90");
  const { expiring, waiting, queues } = walk.report(list, 0);
  assert.deepEqual([names(expiring.locks), waiting, queues, nearMs], ["ef", { count: 3, more: false }, true, 20_000]);
  assert.equal(walk.nextAt(list, false, 0), 2000, "what was renewed meanwhile");
  await run(2000);
  assert.deepEqual(asked.splice(0), ["e", "f"]);
  assert.equal(names(walk.report(list, 2000).expiring.locks), "g", "the others are free, and its time has come");
  assert.equal(walk.nextAt(list, false, 2000), 4000, "and again");
  await run(roundMs);
  assert.deepEqual(asked.slice(0, 5), ["waiting", "g", "waiting1", "waiting2", "expires_within_ms"]);
});

test("events tell who waits between two rounds, and a few names are looked at", async () => {
  const { asked, walk, run, waited, list } = walked({ waiting: [[["b", 2, 500], ["c", 1, 400]]], expires_within_ms: [[]] }, { b: [["b", 1, 40]], n: [["n", 1, 7]] });
  await run(0);
  asked.length = 0;
  const tell = (kind, name, lease = "X") => walk.change({ kind, name, lease, owner: "", mode: "exclusive", token: 1, at: "", took: 0 }, 2100);
  tell("queued", "c");
  assert.equal(waited(2100), "b 2 -500,c 2 -400");
  tell("released", "b", "L-b");
  tell("granted", "b");
  tell("queued", "n");
  tell("granted", "unwaited");
  assert.equal(waited(2200), "b 1 null,c 2 -400", "since when the next one waits is not known");
  await run(2300);
  assert.deepEqual(asked.splice(0), ["b", "n"]);
  assert.equal(waited(2300), "b 1 -40,c 2 -400,n 1 -7");
  tell("left", "b");
  assert.equal(waited(2400), "c 2 -400,n 1 -7");
  assert.equal(walk.nextAt(list, false, 2400), 3300, "at most once a second");
  for (let i = 0; i < 1100; i++) tell("queued", "n");
  assert.ok(walk.nextAt(list, false, 2500) <= 3000, "of too many events the next round tells");
});

test("what happens while names are looked at is not lost, and what an answer may tell of already is not counted twice", async () => {
  let during = () => {};
  const { asked, walk, run, waited, api } = walked({ waiting: [[["b", 2, 500], ["c", 1, 400]]], expires_within_ms: [[]] }, { b: [["b", 1, 40]], c: [["c", 2, 600]] });
  await run(0);
  asked.length = 0;
  const tell = (kind, name, now) => walk.change({ kind, name, lease: "X", owner: "", mode: "exclusive", token: 1, at: "", took: 0 }, now);
  tell("queued", "c", 300); // sent before the page was read, and heard after
  tell("left", "b", 300);
  const { listPage } = api;
  api.listPage = async (query) => { during(); return listPage(query); };
  during = () => tell("left", "b", 300); // of this the answer does not tell
  await walk.step(api, null, 300);
  during = () => {};
  assert.equal(waited(300), "b 1 -40,c 2 -600");
  await run(5000);
  assert.deepEqual(asked.filter((name) => name === "b").length, 2, "it is looked at again");
  asked.length = 0;
  tell("queued", "c", 60_000);
  assert.equal(waited(60_000), "b 1 -40,c 3 -600");
});

test("a slow gateway does not keep a walk from its end, however many names are to be looked at", async () => {
  const { asked, walk, list, api } = walked({ waiting: [[["b", 2, 500]], [], [], []], expires_within_ms: [[["e", 0, undefined, 5000]]] }, { b: [["b", 2, 500]], e: [["e", 0, undefined, 5000]] });
  let now = 0;
  for (let i = 0; i < 30; i++) {
    walk.change({ kind: "granted", name: "b", lease: "X", owner: "", mode: "exclusive", token: 1, at: "", took: 0 }, now);
    walk.report(list, now);
    now = Math.max(now, walk.nextAt(list, false, now));
    await walk.step(api, null, now);
    now += 3000; // the pause that a slow gateway is given
  }
  assert.ok(walk.known && asked.filter((what) => what === "expires_within_ms").length === 2, asked.join());
});

test("of very many locks that are waited for the count says that there are more", async () => {
  const pages = Array.from({ length: 12 }, (_, page) => Array.from({ length: 1000 }, (_, i) => [`n${String(page * 1000 + i).padStart(6, "0")}`, 1, 10]));
  const { walk, run, list } = walked({ waiting: pages, expires_within_ms: [[]] });
  await run(0);
  assert.deepEqual(walk.report(list, 0).waiting, { count: 10_000, more: true });
});

test("a list that is known as a whole needs a walk only for how long somebody has waited", async () => {
  const { asked, walk, run } = walked({ waiting: [[["b", 2, 500]]], expires_within_ms: [[]] });
  const free = { locks: [lock("a", { deadline: 9000 }), lock("b")], more: false };
  await run(0, true, free);
  assert.deepEqual([asked.length, walk.nextAt(free, true, 0)], [0, Infinity]);
  assert.equal(names(walk.report(free, 0).expiring.locks), "a");
  const list = { ...free, locks: [free.locks[0], { ...free.locks[1], waiting: 2 }] };
  assert.deepEqual(walk.report(list, 0).waiting, { count: 2, more: false });
  await run(0, true, list);
  assert.deepEqual(asked, ["waiting"]);
  assert.deepEqual(walk.report(list, 0).waited.locks.map(({ waitedMark }) => waitedMark), [-500]);
  await run(5000, false, { ...list, more: true }); // another lock came
  assert.deepEqual(asked, ["waiting", "waiting", "expires_within_ms"]);
});
