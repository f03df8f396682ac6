// key.js: the key with which the page comes in. It is kept for this tab only, by the
// browser, or in memory where that keeps nothing; never in a cookie or an address.

const item = "fencepost-key";
let memory = null;

// current is the key, null if there is none.
export function current() {
  try {
    return sessionStorage.getItem(item) ?? memory;
  } catch {
    return memory;
  }
}

// keep keeps a key.
export function keep(key) {
  memory = key;
  try {
    sessionStorage.setItem(item, key);
  } catch {
    // This page has it until it is left.
  }
}

// forget forgets the key.
export function forget() {
  memory = null;
  try {
    sessionStorage.removeItem(item);
  } catch {
    // There is none.
  }
}

const reasonItem = "fencepost-left";

// keepReason keeps why the key was forgotten, for the page that comes next in this tab.
export function keepReason(text) {
  try {
    if (text !== "") sessionStorage.setItem(reasonItem, text);
  } catch {
    // The next page asks for a key without saying why.
  }
}

// takeReason returns what was kept, once.
export function takeReason() {
  try {
    const text = sessionStorage.getItem(reasonItem) ?? "";
    sessionStorage.removeItem(reasonItem);
    return text;
  } catch {
    return "";
  }
}

// wellFormed reports whether a text can be sent as a key: one word of visible ASCII.
export function wellFormed(text) {
  return /^[!-~]{1,200}$/.test(text);
}

// headers are those that let a request in.
export function headers() {
  const key = current();
  return key === null ? {} : { authorization: `Bearer ${key}` };
}
