// route.js: what the address says. The search, filters and order are the query
// (?q=…&sort=held), the lock that is open the fragment (#/locks/orders/42), so all can
// be linked, reloaded and walked with the back button. Pure functions.

import { marks, orders, spanMs } from "./arrange.js";

const prefix = "#/locks/";

// validName mirrors the grammar of names. Whatever else stands in the address
// must not be made into a request.
export function validName(name) {
  return /^[A-Za-z0-9._:@~/-]{1,255}$/.test(name) &&
    name.split("/").every((segment) => segment !== "" && segment !== "." && segment !== "..");
}

// everything is a route that shows every lock, in the order of the names.
export const everything = Object.freeze({ q: "", prefix: "", sort: "name", held: "", mode: "", ...Object.fromEntries(marks.map((mark) => [mark, false])) });

const modes = ["exclusive", "shared", "permits"];

// parse reads a route from a location: those of everything, and name. name is null when
// no lock is open and may be invalid, as people type addresses. What else is in the query
// but can't be shown counts as if it were not there: so does an order by how long somebody has
// waited, but among what is waited for.
export function parse({ search, hash }) {
  const query = new URLSearchParams(search);
  const text = (key, known) => (known(query.get(key) ?? "") ? query.get(key) ?? "" : "");
  const sorts = query.has("waited") ? orders : orders.filter((order) => !order.endsWith("waits"));
  const route = {
    q: query.get("q") ?? "",
    prefix: text("prefix", (value) => /^[A-Za-z0-9._:@~/-]{0,255}$/.test(value)),
    sort: text("sort", (value) => sorts.includes(value)) || "name",
    held: text("held", (value) => spanMs(value) > 0),
    mode: text("mode", (value) => modes.includes(value)),
    ...Object.fromEntries(marks.map((mark) => [mark, query.has(mark)])),
  };
  if (!hash.startsWith(prefix)) return { ...route, name: null };
  let name = hash.slice(prefix.length);
  try {
    name = decodeURIComponent(name);
  } catch {
    // A stray % stays as it is and fails the grammar.
  }
  return { ...route, name: name === "" ? null : name };
}

// lockHref is the fragment that opens a lock. Every byte of a name may stand in
// a fragment as it is.
export function lockHref(name) {
  return prefix + name;
}

// address is the path, query and fragment of a route, without what it would be anyway.
export function address(pathname, { name, ...route }) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(route)) {
    if (value !== everything[key]) query.set(key, value === true ? "1" : value);
  }
  return pathname + (query.size === 0 ? "" : `?${query}`) + (name === null ? "" : lockHref(name));
}

const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");

// lockPath is the path of a lock in the HTTP interface.
export function lockPath(name) {
  return "/locks/" + encoded(name);
}

// breakPath is where a lease is broken, with notice of so many milliseconds; 0 is none.
export function breakPath(name, noticeMs) {
  return lockPath(name) + (noticeMs > 0 ? `?notice_ms=${noticeMs}` : "");
}

// queuePath is the path of a place in a lock's queue, by the public part of its lease id.
export function queuePath(name, lease) {
  return `/queues/${encoded(name)}?lease=${encodeURIComponent(lease)}`;
}

// historyPath is the path of a lock's history.
export function historyPath(name) {
  return "/history/" + encoded(name);
}

// eventsPath is the path of the stream of events of all locks.
export const eventsPath = "/events";

// readinessPath is the path of what is known of the gateway and its store.
export const readinessPath = "/readyz?verbose";

// listPath is the path of a page of the list; filter is what it is narrowed to, by parameter.
export function listPath({ q, limit, cursor, prefix, total, filter = {} }) {
  const query = new URLSearchParams({ limit: String(limit) });
  if (prefix) query.set("prefix", prefix);
  if (q) query.set("q", q);
  for (const [key, value] of Object.entries(filter)) query.set(key, value);
  if (cursor) query.set("cursor", cursor);
  if (total) query.set("total", "true");
  return "/locks?" + query;
}
