// Writes a report of 20 parts under the lock reports/nightly. Needs Node 18.17. docs/clients.md has the exit statuses.
//   STORAGE=http://127.0.0.1:8090/report node examples/nightly.mjs
//
// There is one thread: while your code computes, no timer fires. So look at lease.left() before each write, and pass
// lease.signal to each request.
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const gateway = process.env.FENCEPOST ?? "http://127.0.0.1:8080";
const storage = process.env.STORAGE;
const key = process.env.FENCEPOST_KEY;
const ttl = 30000;
if (!storage) {
  console.error("set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report");
  process.exit(2);
}

// Milliseconds, suspended time included where there is such a clock.
function now() {
  try {
    return Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1000;
  } catch {
    return performance.now();
  }
}

// An error that ends the program with a status.
function failure(status, message) {
  return Object.assign(new Error(message), { status });
}

class Lease {
  id = `01${randomBytes(12).toString("hex").toUpperCase()}.${randomBytes(16).toString("base64url")}`;
  #sent = -1; // when the request was sent that was answered
  #over = new AbortController();
  signal = this.#over.signal; // aborted when the lease can't be counted on any more, or by a signal
  constructor(name) {
    this.url = `${gateway}/locks/${name}`;
  }

  // Returns the status; 0: no answer, so nothing is known.
  async ask(method, body, timeout) {
    const sent = now();
    try {
      const answer = await fetch(this.url, {
        method, body: body && JSON.stringify(body), redirect: "manual", // lease id and key are for the gateway alone
        headers: { "Lease-Id": this.id, ...(key && { Authorization: `Bearer ${key}` }) },
        signal: method === "POST" ? AbortSignal.any([this.signal, AbortSignal.timeout(timeout)]) : AbortSignal.timeout(timeout),
      });
      const text = await answer.text();
      if (method !== "DELETE" && answer.ok) {
        const lease = JSON.parse(text);
        const deadline = sent + lease.waited_ms + lease.expires_in_ms;
        const renewAt = sent + lease.waited_ms + lease.renew_in_ms;
        if (!(deadline >= renewAt)) return 0; // not the gateway's answer
        if (sent > this.#sent) { // one that was sent later may have been answered sooner
          [this.#sent, this.deadline, this.renewAt, this.token] = [sent, deadline, renewAt, lease.fencing_token];
        }
      }
      return answer.status;
    } catch {
      return 0;
    }
  }

  async acquire(wait) {
    const giveUp = now() + wait;
    for (let left; (left = Math.floor(giveUp - now())) > 0; await sleep(1000, 0, { signal: this.signal })) {
      const status = await this.ask("POST", { ttl_ms: ttl, wait_ms: left, owner: "node" }, left + 5000);
      if ((status === 200 || status === 201) && this.left() > 0) {
        this.watch = setInterval(() => this.left() > 0 || this.end(124, "the lease is over"), 100);
        this.kept = this.#keep();
        return true;
      }
      if (status !== 0 && status !== 429 && status < 500) return false;
    } // not known, or not now: the same request again
    return false;
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
    const status = await this.ask("PUT", {}, timeout);
    if (status === 412 && !this.released) this.end(124, "the lease is lost");
    if (status !== 200) this.renewAt = Math.min(this.renewAt, now() + this.left() / 10);
  }

  async release() {
    this.released = true;
    clearInterval(this.watch);
    await this.kept;
    await this.ask("DELETE", undefined, 5000);
  }
}

const lease = new Lease("reports/nightly");
for (const [name, number] of [["SIGTERM", 15], ["SIGINT", 2], ["SIGHUP", 1]]) {
  process.on(name, () => lease.end(128 + number, name));
}
try {
  if (!(await lease.acquire(30000))) throw failure(75, "the lock could not be acquired");
  for (let part = 1; part <= 20; part++) {
    lease.signal.throwIfAborted();
    if (lease.left() <= 0) throw failure(124, "the lease is over"); // no timer fires while we compute
    const written = await fetch(storage, {
      method: "PUT", body: `part ${part} by node`,
      headers: { "Fencing-Token": String(lease.token) }, signal: lease.signal,
    });
    if (written.status === 412) throw failure(124, "the token is refused");
    if (!written.ok) throw failure(1, `part ${part} is not written: ${written.status}`);
    await sleep(200, 0, { signal: lease.signal });
  }
} catch (error) {
  const why = lease.signal.aborted ? lease.signal.reason : error;
  console.error(why.message);
  process.exitCode = why.status ?? 1;
}
await lease.release();
process.exit();
