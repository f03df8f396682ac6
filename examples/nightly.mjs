// Writes a report of 20 parts under the lock reports/nightly. Needs Node 18.17. docs/clients.md has the exit statuses.
//   STORAGE=http://127.0.0.1:8090/report node examples/nightly.mjs
//
// There is one thread: while your code computes, no timer fires. So look at lease.left() before each write, and pass
// lease.signal to each request.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const lock = "reports/nightly"; // any text
const gateways = (process.env.FENCEPOST || "http://127.0.0.1:8080").split(/[,\s]+/).filter(Boolean).map((url) => url.replace(/\/+$/, ""));
const storage = process.env.STORAGE;
const key = process.env.FENCEPOST_KEY;
const ttl = 30000;
if (!storage) {
  console.error("set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report");
  process.exit(2);
}
if (!gateways.length || !gateways.every((url) => /^https?:\/\/([^/:@]+|\[[^/]+\])(:\d+)?(\/|$)/.test(url))) {
  console.error("FENCEPOST has to be a list of URLs like http://127.0.0.1:8080");
  process.exit(64);
}

// Milliseconds, suspended time included where there is such a clock.
function now() {
  try {
    return Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;
  } catch {
    return performance.now();
  }
}

// Any text as a name: docs/locks.md.
function encode(text) {
  return Buffer.from(text).toString("latin1").replace(/[^A-Za-z0-9._:@/-]|^\/|\/$|(?<=\/)\/|(?<![^/])\.(?=\.?(\/|$))/g,
    (byte) => `~${byte.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`);
}

// An error that ends the program with a status.
function failure(status, message) {
  return Object.assign(new Error(message), { status });
}

// Why a fetch failed.
function reason(error) {
  return error.cause?.message || error.cause?.code || error.message;
}

class Lease {
  id = `01${randomBytes(12).toString("hex").toUpperCase()}.${randomBytes(16).toString("base64url")}`;
  #sent = -1; // when the request was sent that was answered
  #turn = 0; // of which gateway
  #over = new AbortController();
  signal = this.#over.signal; // aborted when the lease can't be counted on any more, or by a signal
  deadline = 0;
  constructor(text) {
    this.path = `/locks/${encode(text)}`;
  }

  // Returns the status, 0 if it is no gateway's, and for how long not to ask again. this.said has the answer, for people.
  async ask(method, body, timeout) {
    const sent = now(), turn = this.#turn++; // whoever asks before this is answered asks the next gateway
    const url = gateways[turn % gateways.length] + this.path;
    let status = 0, after = 0, text = "";
    try {
      const answer = await fetch(url, {
        method, body: body && JSON.stringify(body), redirect: "manual", // lease id and key are for the gateway alone
        headers: { "Lease-Id": this.id, ...(key && { Authorization: `Bearer ${key}` }) },
        signal: method === "POST" ? AbortSignal.any([this.signal, AbortSignal.timeout(timeout)]) : AbortSignal.timeout(timeout),
      });
      after = Number(answer.headers.get("Retry-After")) * 1000 || 0;
      text = `${answer.status} ${await answer.text()}`;
      if (method !== "DELETE" && answer.ok) {
        const lease = JSON.parse(text.slice(4));
        const deadline = sent + lease.waited_ms + lease.expires_in_ms;
        const renewAt = sent + lease.waited_ms + lease.renew_in_ms;
        if (!(deadline >= renewAt)) throw new Error(text);
        if (sent > this.#sent) { // one that was sent later may have been answered sooner
          [this.#sent, this.deadline, this.renewAt, this.token] = [sent, deadline, renewAt, lease.fencing_token];
        }
      }
      if (answer.status >= 400 && answer.status < 500 && !text.includes('"code"')) throw new Error(text); // a proxy's
      status = answer.status;
      if ([200, 201, 204, 400, 409, 412, 423].includes(status)) this.#turn = turn;
    } catch (error) { // no answer, or not the gateway's
      text ||= reason(error);
    }
    this.said = `${method} ${url}: ${text.slice(0, 500)}`;
    return [status, after];
  }

  // Asks until a gateway decides, all refuse to let this wait, or the time is over. Returns the last status.
  async #insist(method, time) {
    const until = now() + time, signal = method === "POST" ? this.signal : undefined;
    let status = 0, asked = 0, refused = 0, after;
    for (let left; refused < gateways.length && (left = until - now()) > 0; ) {
      if (method === "POST") {
        const wait = Math.floor(Math.min(left, 5000));
        [status, after] = await this.ask(method, { ttl_ms: ttl, wait_ms: wait, owner: "node" }, wait + 3000);
        if (this.left() > 0 || [404, 405, 413, 428].includes(status)) break;
        refused = Math.floor(status / 100) === 3 || [401, 403, 421].includes(status) ? refused + 1 : 0;
      } else {
        [status, after] = await this.ask(method, undefined, Math.ceil(Math.min(left, 2000)));
      }
      if ([204, 400, 409, 412].includes(status)) break;
      asked++;
      if (status === 423) await sleep(100, 0, { signal }); // the place in the queue is kept for some seconds
      else if (asked % gateways.length === 0) await sleep(Math.min(Math.max(after, 500), 3000), 0, { signal });
    }
    return status;
  }

  async acquire(wait) {
    const status = await this.#insist("POST", wait);
    if (this.left() <= 0) {
      const exits = { 401: 77, 403: 77, 409: 75, 412: 75, 423: 75, 429: 75 };
      const otherwise = this.said.includes('"quarantined"') ? 75 : status >= 300 && status < 500 ? 64 : 69;
      throw failure(exits[status] ?? otherwise, `the lock is not acquired: ${this.said}`);
    }
    this.watch = setInterval(() => this.left() > 0 || this.end(124, `the lease is over; ${this.said}`), 100);
    this.kept = this.#keep();
  }

  left() {
    return this.deadline - now() - ttl / 10; // a tenth to spare
  }

  end(status, message) {
    this.#over.abort(failure(status, message));
  }

  async #keep() {
    while (!this.signal.aborted) {
      await sleep(Math.max(20, Math.min(this.renewAt - now(), 200)));
      if (this.released) return;
      if (now() < this.renewAt) continue;
      const left = Math.max(50, this.left());
      this.renewAt = now() + left / 3; // no answer by then: another one beside it
      this.#renew(left);
    }
  }

  async #renew(timeout) {
    const [status, after] = await this.ask("PUT", {}, timeout);
    if (status === 412 && !this.released) this.end(124, `the lease is lost; ${this.said}`);
    if (status === 200) return;
    const left = this.left();
    this.renewAt = Math.min(this.renewAt, now() + Math.max(left / 10, Math.min(after, left / 4)));
  }

  async release() {
    this.released = true;
    clearInterval(this.watch);
    await this.kept;
    await this.#insist("DELETE", 5000);
  }
}

const lease = new Lease(lock);
for (const [name, number] of [["SIGTERM", 15], ["SIGINT", 2], ["SIGHUP", 1]]) {
  process.on(name, () => lease.end(128 + number, name));
}
try {
  await lease.acquire(30000);
  for (let part = 1; part <= 20; part++) {
    lease.signal.throwIfAborted();
    if (lease.left() <= 0) throw failure(124, `the lease is over; ${lease.said}`); // no timer fires while we compute
    const written = await fetch(storage, {
      method: "PUT", body: `part ${part} by node`,
      headers: { "Fencing-Token": String(lease.token) }, signal: lease.signal,
    }).catch((error) => { throw failure(1, `part ${part} is not written: ${reason(error)}`); });
    if (!written.ok) {
      throw failure(written.status === 412 ? 124 : 1, `part ${part} is not written: ${written.status} ${await written.text()}`);
    }
    await sleep(200, 0, { signal: lease.signal });
  }
  console.log("20 parts are written");
} catch (error) {
  const why = lease.signal.aborted ? lease.signal.reason : error;
  console.error(why.message);
  process.exitCode = why.status ?? 1;
}
await lease.release();
process.exit();
