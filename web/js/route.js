// route.js: what the address says. The search is the query (?q=…), the lock
// that is open the fragment (#/locks/orders/42), so both can be linked, reloaded
// and walked with the back button. Pure functions.

const prefix = "#/locks/";

// validName mirrors the grammar of names. Whatever else stands in the address
// must not be made into a request.
export function validName(name) {
  return /^[A-Za-z0-9._:@~/-]{1,255}$/.test(name) &&
    name.split("/").every((segment) => segment !== "" && segment !== "." && segment !== "..");
}

// parse reads {q, name} from a location; name is null when no lock is open and
// may be invalid, as people type addresses.
export function parse({ search, hash }) {
  const q = new URLSearchParams(search).get("q") ?? "";
  if (!hash.startsWith(prefix)) return { q, name: null };
  let name = hash.slice(prefix.length);
  try {
    name = decodeURIComponent(name);
  } catch {
    // A stray % stays as it is and fails the grammar.
  }
  return { q, name: name === "" ? null : name };
}

// lockHref is the fragment that opens a lock. Every byte of a name may stand in
// a fragment as it is.
export function lockHref(name) {
  return prefix + name;
}

// address is the path, query and fragment of {q, name}.
export function address(pathname, { q, name }) {
  const query = q === "" ? "" : "?" + new URLSearchParams({ q });
  return pathname + query + (name === null ? "" : lockHref(name));
}

const encoded = (name) => name.split("/").map(encodeURIComponent).join("/");

// lockPath is the path of a lock in the HTTP interface.
export function lockPath(name) {
  return "/locks/" + encoded(name);
}

// historyPath is the path of a lock's history.
export function historyPath(name) {
  return "/history/" + encoded(name);
}

// eventsPath is the path of the stream of events of all locks.
export const eventsPath = "/events";

// readinessPath is the path of what is known of the gateway and its store.
export const readinessPath = "/readyz?verbose";

// listPath is the path of a page of the list.
export function listPath({ q, limit, cursor, prefix }) {
  const query = new URLSearchParams({ limit: String(limit) });
  if (prefix) query.set("prefix", prefix);
  if (q) query.set("q", q);
  if (cursor) query.set("cursor", cursor);
  return "/locks?" + query;
}
