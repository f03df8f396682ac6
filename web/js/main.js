// main.js: wires the page together: the address decides what is watched, the
// source's answers decide what is shown.

import * as api from "./api.js";
import { Connection } from "./connection.js";
import { Dangers } from "./dangers.js";
import { Detail } from "./detail.js";
import { Empty } from "./empty.js";
import { Health } from "./health.js";
import { List } from "./list.js";
import { address, parse, validName } from "./route.js";
import { SignIn } from "./signin.js";
import { Source } from "./source.js";
import * as state from "./state.js";
import { setText } from "./dom.js";

const pageSize = 100;
const debounceMs = 200;
const tickMs = 100;
const oldMs = 4000; // what is shown after the page was hidden for longer is not live

const id = (name) => document.getElementById(name);
const now = () => performance.now();

const input = id("q");
const list = new List(id("rows"), { onLeft: showEmpty });
const detail = new Detail(id("detail"), close);
const empty = new Empty(id("empty"), { onClear: clearSearch });
const connection = new Connection(document, { onRetry: () => source.refresh() });
const dangers = new Dangers(document);
const health = new Health(api, { onData: showHealth });
const source = new Source(api, { onData, onFailure, onGap: () => health.look() });

const signIn = new SignIn(document, { onKey: come });

let route = parse(location);
let wanted = pageSize;
let status = state.initial;
let ticker = 0;
let latest = null; // the last good answer
let hiddenAt = Infinity;
let announced = ""; // the search whose result was read aloud

// The data.

function onData(data) {
  latest = data;
  setStatus(state.answered(now(), data.asking));
  list.update(data, now());
  list.mark(data.query.name);
  if (data.query.name === route.name) detail.update(data.detail, now());
  showCount(data);
  showEmpty();
  id("more").hidden = !data.list.more;
}

// showEmpty waits until the last row has left.
function showEmpty() {
  if (latest === null) {
    empty.unknown(state.stale(status));
    return;
  }
  const none = latest.list.locks.length === 0 && list.size === 0;
  id("table").hidden = none;
  empty.show({ visible: none, q: latest.query.q, more: latest.list.more });
}

function showHealth(found) {
  dangers.update(found, now());
  empty.hold(found.till, now());
  connection.explain(found.refusal, now());
}

function onFailure(error, pause) {
  // With too many failures from this address a key still lets in.
  if (error.status === 401 || error.status === 429 && latest === null) {
    source.pause();
    health.pause();
    if (latest === null) signIn.refused(error.detail);
    else signIn.leave(); // what is shown was for the key that lets in no more
    return;
  }
  setStatus(state.failed(status, error, pause, now(), navigator.onLine));
  if (status.kind === "store") health.look(); // it knows why
}

// come reads with the key that was given.
function come() {
  setStatus(state.initial);
  source.resume();
  health.resume();
}

function setStatus(next) {
  status = next;
  connection.update(status, now());
  detail.age(state.stale(status), now());
  if (latest === null) showEmpty();
}

function showCount({ query, list: { locks, more } }) {
  const many = `${locks.length}${more ? "+" : ""}`;
  setText(id("count"), `${many} ${query.q === "" ? "live" : "found"}`);
  // Read aloud what a search or "show more" came to, not every change.
  const asked = JSON.stringify([query.q, query.wanted]);
  if (asked === announced) return;
  announced = asked;
  setText(id("announcement"), `${many} ${locks.length === 1 ? "lock" : "locks"} ${query.q === "" ? "live" : "found"}`);
}

// The address.

function watch() {
  const name = route.name !== null && validName(route.name) ? route.name : null;
  source.watch({ q: route.q, wanted, name });
}

function follow() {
  const before = route;
  route = parse(location);
  if (route.q !== before.q) wanted = pageSize;
  if (input.value.trim() !== route.q) input.value = route.q;
  showRoute();
  if (route.name !== before.name) moveFocus(before.name);
  watch();
}

function showRoute() {
  const { name } = route;
  document.documentElement.toggleAttribute("data-detail", name !== null);
  document.title = name === null ? "Fencepost" : `${name} \u00b7 Fencepost`;
  list.mark(name);
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
  history.pushState(null, "", address(location.pathname, { q: route.q, name: null }));
  follow();
}

// The search.

let debounce = 0;

function search() {
  clearTimeout(debounce);
  const q = input.value.trim();
  if (q === route.q) return;
  history.replaceState(null, "", address(location.pathname, { q, name: route.name }));
  follow();
}

function clearSearch() {
  input.value = "";
  search();
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
id("more-button").addEventListener("click", () => {
  wanted += pageSize;
  watch();
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !typing) {
    event.preventDefault();
    input.focus();
    input.select();
  } else if (event.key === "Escape" && !typing && route.name !== null) {
    close();
  }
});

// The clock: texts change ten times a second, and only while somebody looks.

function tick() {
  const at = now();
  list.tick(at);
  detail.tick(at);
  connection.tick(at);
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
  health.resume();
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
