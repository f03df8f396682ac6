// sse.js: server-sent events read by hand. EventSource hides the status of a
// refusal and the heartbeats, and the page needs both: to know when to come back,
// and that a silent stream is alive.

// Parser takes the text of a stream in pieces and returns the events that have
// become complete: {event, data}. Comments and fields it has no use for are
// passed over.
export class Parser {
  #rest = "";
  #event = "";
  #data = [];

  push(text) {
    const events = [];
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop();
    for (const raw of lines) {
      const line = raw.endsWith("\r") ? raw.slice(0, -1) : raw;
      if (line !== "") {
        this.#field(line);
      } else if (this.#event !== "" || this.#data.length > 0) {
        events.push({ event: this.#event || "message", data: this.#data.join("\n") });
        this.#event = "";
        this.#data = [];
      }
    }
    return events;
  }

  #field(line) {
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
  }
}

// change reads what an event says of a lock: {kind, name, lease, owner, mode, token,
// at, took}, or null if it is none that the page knows. took is for how long who was granted
// a lock had waited, and a lease that ended was held, in milliseconds; 0 of the others.
export function change({ event, data }) {
  if (!kinds.has(event)) return null;
  try {
    const { name, lease, owner, mode, fencing_token: token, at, waited_ms: waited, held_ms: held } = JSON.parse(data);
    if (typeof name !== "string") return null;
    return {
      kind: event, name, lease: String(lease ?? ""), owner: String(owner ?? ""),
      mode: mode === "shared" ? "shared" : "exclusive", token: Number(token ?? 0), at: String(at ?? ""), took: Number(waited ?? held ?? 0),
    };
  } catch {
    return null;
  }
}

const kinds = new Set(["granted", "released", "expired", "broken", "notice", "queued", "left"]);
