// main.js: wires the page together: the address decides what is watched, the
// source's answers decide what is shown.

import * as api from "./api.js";
import { Break } from "./break.js";
import { Connection } from "./connection.js";
import { Dangers } from "./dangers.js";
import { Attention } from "./attention.js";
import { Detail } from "./detail.js";
import { arrange, branches, narrowing, plain } from "./arrange.js";
import { Empty } from "./empty.js";
import { Figures } from "./figures.js";
import { Filters, Tree } from "./filters.js";
import { Health } from "./health.js";
import { List } from "./list.js";
import { address, everything, parse, validName } from "./route.js";
import { SignIn } from "./signin.js";
import { run } from "./slices.js";
import { mostLocks, Source } from "./source.js";
import * as state from "./state.js";
import { setText } from "./dom.js";

const pageSizes = [100, 1000]; // of a list that is read on as somebody comes to its end
const debounceMs = 200;
const tickMs = 250;
const restForArranging = 10; // no more than a tenth of the time goes into that
const againMs = 2000; // what depends on the time is arranged anew
const oldMs = 4000; // what is shown after the page was hidden for longer is not live

const id = (name) => document.getElementById(name);
const now = () => performance.now();

const input = id("q");
const list = new List(id("table"), id("rows"), { onLeft: showEmpty, onView: (names) => source.look(names) });
const filters = new Filters(document, { onChange: (change) => go({ ...route, ...change }) });
const tree = new Tree(document, { onOpen: watch });
const attention = new Attention(document, { onAll: (change) => visit(address(location.pathname, { ...everything, q: route.q, prefix: route.prefix, ...change, name: null })) });
const detail = new Detail(id("detail"), { onClose: close, onBreak: (lock, holder) => breaking.open(lock, holder), onEvict: (lock, waiter) => breaking.evict(lock, waiter) });
const breaking = new Break(id("break"), api, { onDone: () => detail.focus() });
const empty = new Empty(id("empty"), { onClear: clearSearch });
const connection = new Connection(document, { onRetry: () => source.refresh() });
const dangers = new Dangers(document);
const health = new Health(api, { onData: showHealth });
const figures = new Figures(document);
const source = new Source(api, {
  onData, onFailure, onEvent: (event) => figures.add(event, now()),
  onGap: () => {
    health.look();
    figures.begin(now());
  },
  onSilence: () => figures.silence(now()),
});

const signIn = new SignIn(document, { onKey: come });

let route = parse(location);
let wanted = pageSizes[0];
let status = state.initial;
let ticker = 0;
let latest = null; // the last good answer
let hiddenAt = Infinity;
let announced = ""; // the search whose result was read aloud
let shown = []; // the locks that are shown
let drawn = null; // the answer and the route that they are of
let arranging = null; // gives up the work on what is to be shown, null if none is under way
let arrangedAt = -Infinity;
let arrangingMs = 0; // how long that took
let late = false; // what is shown is not of the last answer yet

// The data.

function onData(data) {
  latest = data;
  list.tell(data.ends);
  health.resume(); // not before: each request without a key is a failure to the gateway
  setStatus(state.answered(now(), data.asking));
  if (data.query.name === route.name) detail.update(data.detail, now());
  late = true;
  show();
}

// show arranges what is known, in slices, and draws it, unless that took so long the last
// time that the page would be busy with it.
function show() {
  if (arranging !== null || !late || latest === null || !covers(latest.query, route) || now() - arrangedAt < restForArranging * arrangingMs) return;
  const data = latest;
  late = false;
  arranging = run(arrangement(data.list.locks, route, now()), (arranged, took) => {
    const began = now();
    arranging = null;
    draw(data, arranged);
    arrangedAt = now();
    arrangingMs = took + arrangedAt - began;
  });
}

function* arrangement(locks, of, at) {
  const some = yield* arrange(locks, of, at);
  return { locks: some, below: tree.open ? yield* branches(some, of.prefix) : null };
}

function draw(data, { locks, below }) {
  const { query, list: { more, reading }, ends } = data;
  // Of many turns the walk alone has read something.
  const same = drawn !== null && locks === shown && query === drawn.query && route === drawn.route && more === drawn.list.more && ends.size === 0;
  shown = locks;
  drawn = { ...data, route };
  if (!same) list.update(data, shown, route, now());
  if (below !== null) tree.update(below, more || reading, route);
  attention.update(data.attention, now());
  countAll(data);
  showCount(data);
  showEmpty();
  id("more").hidden = !more || reading || everyLock() || wanted >= mostLocks;
}

// showEmpty waits until the last row has left.
function showEmpty() {
  if (latest === null) {
    empty.unknown(state.stale(status));
    return;
  }
  const none = shown.length === 0 && list.size === 0;
  id("table").hidden = none;
  empty.show({ visible: none, q: latest.query.q, more: latest.list.more || latest.list.reading, filtered: !plain(route) || route.prefix !== "" });
}

function showHealth(found) {
  dangers.update(found, now());
  empty.hold(found.till, now());
  detail.hold(found.till, now());
  connection.explain(found.refusal, now());
  attention.tell(found);
}

function onFailure(error, pause) {
  // With too many failures from this address a key still lets in; one that was given may be good.
  if (error.status === 401 || error.status === 429 && !signIn.given) {
    source.pause();
    health.pause();
    if (latest === null) signIn.refused(error.detail);
    else signIn.leave(error.detail); // what is shown was for the key that lets in no more
    return;
  }
  health.resume();
  setStatus(state.failed(status, error, pause, now(), navigator.onLine));
  if (status.kind === "store") health.look(); // it knows why
}

// come reads with the key that was given.
function come() {
  setStatus(state.initial);
  source.resume();
}

function setStatus(next) {
  status = next;
  connection.update(status, now());
  detail.age(state.stale(status), now());
  figures.age(state.stale(status));
  if (latest === null) showEmpty();
}

function showCount({ query, list: { locks, more, reading, looked, total } }) {
  const further = more || reading;
  const narrowed = Object.keys(query.filter).length > 0;
  const found = howMany(locks.length, query.q === "" ? total : undefined, further, narrowed);
  const what = query.q === "" && query.prefix === "" ? "live" : "found";
  const far = reading ? looking(looked, total, query.q !== "" || narrowed) : more && everyLock() ? ", the first in the order of the names" : "";
  setText(id("count"), `${found} ${what}${far}`);
  // Read aloud what a search, a filter or "show more" came to, not every change.
  const asked = JSON.stringify([query.wanted, { ...route, name: null }]);
  if (asked === announced || reading) return;
  announced = asked;
  setText(id("announcement"), `${found} ${found === "1" ? "lock" : "locks"} ${what}`);
}

// looking says how far the page is in reading all names.
function looking(looked, total, searched) {
  const of = total === undefined ? "" : ` of ${total.toLocaleString("en")}`;
  return `, ${Math.min(looked, total ?? looked).toLocaleString("en")}${of} ${searched ? "names searched" : "read"}`;
}

// countAll tells how many are held, and how many wait, of those that the search and the prefix leave.
function countAll({ query: { q, filter }, list: { locks, more, reading, total }, attention: { waiting } }) {
  const further = more || reading;
  const narrowed = Object.keys(filter).length > 0;
  const known = { count: locks.length, more: further };
  const all = total === undefined ? undefined : { count: narrowed ? total : Math.max(total, locks.length), more: false };
  const held = narrowed ? (q === "" ? all : undefined) : q === "" && further ? all ?? known : known;
  figures.count(held, waiting);
}

// howMany says how many locks are shown, and of how many: of those that are known, or where
// the gateway was asked for some only, of all that it has counted.
function howMany(known, total, further, narrowed) {
  const text = (count, plus) => (count === 0 && plus ? "none yet" : `${count.toLocaleString("en")}${plus ? "+" : ""}`);
  if (plain({ ...route, sort: "name" })) return further && total > known ? `${text(known)} of ${text(total)}` : text(known, further);
  if (!narrowed) return `${text(shown.length)} of ${text(known, further)}`;
  return total === undefined ? text(shown.length, further) : `${text(shown.length, further)} of ${text(Math.max(total, shown.length))}`;
}

// The address.

// everyLock tells whether all locks are asked about, not only the first.
function everyLock() {
  return !plain(route) || tree.open;
}

function watch() {
  const name = route.name !== null && validName(route.name) ? route.name : null;
  source.watch({ q: route.q, prefix: route.prefix, filter: narrowing(route), wanted: everyLock() ? mostLocks : wanted, name });
}

// go changes the address.
function go(next) {
  const there = address(location.pathname, next);
  if (there === location.pathname + location.search + location.hash) return;
  window.history.replaceState(null, "", there);
  follow();
}

// visit goes to an address that can be left with the back button.
function visit(there) {
  window.history.pushState(null, "", there);
  follow();
}

function follow() {
  const before = route;
  route = parse(location);
  if (route.q !== before.q || route.prefix !== before.prefix) wanted = pageSizes[0];
  if (input.value.trim() !== route.q) input.value = route.q;
  showRoute();
  if (route.name !== before.name) moveFocus(before.name);
  watch();
  arranging?.();
  arranging = null;
  arrangingMs = 0;
  late = true;
  show();
}

// covers tells whether all that a route shows is in the answer to a query.
function covers({ q, prefix, filter }, of) {
  return q === of.q && prefix === of.prefix && ["{}", JSON.stringify(narrowing(of))].includes(JSON.stringify(filter));
}

function showRoute() {
  const { name } = route;
  document.documentElement.toggleAttribute("data-detail", name !== null);
  document.title = name === null ? "Fencepost" : `${name} \u00b7 Fencepost`;
  list.mark(name);
  filters.show(route);
  tree.show(route);
  attention.show(route);
  detail.open(name);
  if (name !== null && !validName(name)) {
    detail.update({ problem: "No lock can have this name. A name has 1 to 255 of the characters A-Z a-z 0-9 . _ : @ ~ - and /, without empty, . or .. segments." }, now());
  }
}

function moveFocus(from) {
  if (route.name !== null) detail.focus();
  else if (!list.focus(from)) id("locks").focus();
}

function close() {
  window.history.pushState(null, "", address(location.pathname, { ...route, name: null }));
  follow();
}

// The search.

let debounce = 0;

function search() {
  clearTimeout(debounce);
  const q = input.value.trim();
  if (q === route.q) return;
  go({ ...route, q });
}

function clearSearch() {
  input.value = "";
  go({ ...everything, name: route.name });
  input.focus();
}

input.addEventListener("input", () => {
  clearTimeout(debounce);
  debounce = setTimeout(search, debounceMs);
});
id("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the route
  id("locks").focus();
});
function readOn() {
  if (id("more").hidden) return;
  wanted = pageSizes.find((size) => size > wanted) ?? Math.min(mostLocks, wanted + 5 * pageSizes[1]);
  watch();
}
id("more-button").addEventListener("click", readOn);
// Who scrolls to the end wants to see more.
addEventListener("scroll", () => {
  if (id("more").hidden || latest?.query.wanted !== wanted) return; // where the page ends takes a layout
  if (scrollY > 0 && scrollY + innerHeight > document.documentElement.scrollHeight - 300) readOn();
}, { passive: true });

const help = id("help");
id("help-button").addEventListener("click", () => help.showModal());
id("help-close").addEventListener("click", () => help.close());

// A link to a prefix is followed in place.
id("tree").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link === null || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  visit(link.href);
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (help.open || id("break").open || signIn.open) return;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if ((event.key === "j" || event.key === "k") && !typing) {
    event.preventDefault();
    list.step(event.key === "j" ? 1 : -1);
  } else if (event.key === "b" && !typing) {
    event.preventDefault();
    detail.breakOne();
  } else if (event.key === "?" && !typing) {
    event.preventDefault();
    help.showModal();
  } else if (event.key === "Escape" && !typing && route.name !== null) {
    close();
  }
});

// The clock: texts change four times a second at most, and only while somebody looks.

function tick() {
  const at = now();
  if (latest !== null && !plain(route) && at - arrangedAt > againMs) late = true;
  show();
  list.tick(at);
  detail.tick(at);
  connection.tick(at);
  figures.tick(at);
  attention.tick(at);
  dangers.tick(at);
  empty.tick(at);
}

function visibility() {
  clearInterval(ticker);
  if (document.hidden) {
    hiddenAt = now();
    source.pause();
    health.pause();
    return;
  }
  if (status.lastGood !== null && now() - hiddenAt > oldMs) setStatus(state.resumed(status));
  ticker = setInterval(tick, tickMs);
  tick();
  if (signIn.open) return;
  source.resume();
  if (latest !== null) health.resume();
}

addEventListener("popstate", follow);
addEventListener("online", () => {
  if (!signIn.open) source.refresh();
});
document.addEventListener("visibilitychange", visibility);

input.value = route.q;
setStatus(status);
showRoute();
watch();
visibility();
