// state.js: what is known about the connection, and the words for it. Pure
// functions: a state, an event, the next state.
//
// kind: connecting, live, asking (all is well, but there are no events, so what
// is shown may be two seconds old), reconnecting (no answer), offline (no answer, and the
// browser says it has no network), store (the gateway answers, its store does
// not), draining, refused (any other answer).

import { span } from "./clock.js";

export const initial = Object.freeze({ kind: "connecting", lastGood: null, retryAt: null, detail: "" });

// answered is the state after a good answer at now; asking says that there are
// no events.
export function answered(now, asking = false) {
  return { kind: asking ? "asking" : "live", lastGood: now, retryAt: null, detail: "" };
}

// failed is the state after a failure; the next try is pause ms away.
export function failed(state, error, pause, now, online) {
  return { kind: kindOf(error, online), lastGood: state.lastGood, retryAt: now + pause, detail: error.detail ?? "" };
}

// resumed is the state when the page is looked at again after a while: what it
// shows may be old until the first answer.
export function resumed(state) {
  return { ...state, kind: "connecting", retryAt: null, detail: "" };
}

function kindOf(error, online) {
  // A gateway on this very machine answers without any network, so the
  // browser's word counts only when there was no answer.
  if (error.status === 0) return online ? "reconnecting" : "offline";
  if (error.code === "draining") return "draining";
  if (error.status === 503) return "store";
  return "refused";
}

// stale reports whether what is shown may not be true any more.
export function stale(state) {
  return !["live", "asking", "connecting"].includes(state.kind);
}

const words = {
  connecting: ["Connecting", ""],
  live: ["Live", ""],
  asking: ["Live, every 2\u00a0s", ""],
  reconnecting: ["Reconnecting", "The gateway does not answer."],
  offline: ["Offline", "This device has no network, and the gateway does not answer."],
  store: ["Store unavailable", "The gateway answers, but its store does not serve it: \u201cgateway doctor\u201d says what to change."],
  draining: ["Shutting down", "The gateway is shutting down."],
  refused: ["Refused", "The gateway refuses to list the locks."],
};

// label is the short name of a state.
export function label(state) {
  return words[state.kind][0];
}

// sentence says what is wrong, in words that don't change from second to
// second, as screen readers read it aloud. refusal is why the store refuses the gateway,
// null if that is not known.
export function sentence(state, refusal = null) {
  const text = words[state.kind][1];
  if (state.kind === "store" && refusal !== null) return `The gateway answers, but ${refusal.detail}.`;
  return state.detail && (state.kind === "refused" || state.kind === "store")
    ? `${text} It says: \u201c${state.detail}\u201d.`
    : text;
}

// times says how old the data is and when the next try comes.
export function times(state, now) {
  const parts = [];
  if (state.lastGood !== null) parts.push(`This is what was true ${span(now - state.lastGood)} ago.`);
  if (state.retryAt !== null) {
    parts.push(state.retryAt > now ? `Next try in ${span(state.retryAt - now + 999)}.` : "Trying\u2026");
  }
  return parts.join(" ");
}
