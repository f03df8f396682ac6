# Writes a report of 20 parts under the lock reports/nightly. Needs Python 3.8 and its standard library. docs/clients.md has the
# exit statuses.
#   STORAGE=http://127.0.0.1:8090/report python3 examples/nightly.py
#
# A thread renews the lease. Another thread, which does nothing else, ends the process before the deadline, whatever the
# others wait for.
import contextlib, http.client, json, os, queue, re, secrets, signal, socket, sys, threading, time
from urllib.parse import urlsplit

LOCK = "reports/nightly"  # any text
GATEWAYS = [url.rstrip("/") for url in (os.environ.get("FENCEPOST") or "http://127.0.0.1:8080").replace(",", " ").split()]
STORAGE = os.environ.get("STORAGE")
KEY = os.environ.get("FENCEPOST_KEY")
TTL = 30000


def fail(status, why):
    print(why, file=sys.stderr)
    sys.exit(status)


def now():  # suspended time included, where there is such a clock
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def encode(text):  # as a name: docs/locks.md
    special = rb"[^A-Za-z0-9._:@/-]|^/|/\Z|(?<=/)/|(?<![^/])\.(?=\.?(/|\Z))"
    return re.sub(special, lambda m: b"~%02X" % m[0][0], os.fsencode(text)).decode()


def request(method, url, body, headers, timeout):
    """Returns status, body and the seconds of Retry-After; status 0: no answer in time, so nothing is known."""
    answers, given_up = queue.SimpleQueue(), threading.Event()
    u = urlsplit(url)
    connection = http.client.HTTPSConnection if u.scheme == "https" else http.client.HTTPConnection
    conn = connection(u.netloc, timeout=timeout)

    def exchange():  # timeout bounds each step of it: a thread of its own, for the whole
        try:
            conn.connect()
            if given_up.is_set():
                return  # else it would reach the gateway after what is sent next
            conn.request(method, u._replace(scheme="", netloc="", fragment="").geturl(), body, headers)
            answer = conn.getresponse()
            after = answer.getheader("Retry-After", "")
            answers.put((answer.status, answer.read().decode(errors="replace"), int(after) if re.fullmatch("[0-9]{1,9}", after) else 0))
        except Exception as e:
            answers.put((0, repr(e), 0))
        finally:
            conn.close()

    threading.Thread(target=exchange, daemon=True).start()
    try:
        return answers.get(timeout=timeout)
    except queue.Empty:
        return 0, "no answer in time", 0
    finally:  # what is still under way, as when a signal has come, is cut off
        given_up.set()
        with contextlib.suppress(AttributeError, OSError):
            conn.sock.shutdown(socket.SHUT_RDWR)


class Lease:
    def __init__(self, text):
        self.path = "/locks/" + encode(text)
        self.id = "01" + secrets.token_hex(12).upper() + "." + secrets.token_urlsafe(16)
        self.headers = {"Lease-Id": self.id, **({"Authorization": "Bearer " + KEY} if KEY else {})}
        self.released = threading.Event()
        self.lock, self.sent, self.deadline = threading.Lock(), 0, 0
        self.turn, self.said = 0, ""

    def ask(self, method, body, timeout):
        """Returns the status, 0 if it is no gateway's, and for how long not to ask again. self.said has the answer, for people."""
        turn, sent = self.turn, now()
        self.turn += 1  # whoever asks before this is answered asks the next gateway
        url = GATEWAYS[turn % len(GATEWAYS)] + self.path
        status, text, pause = request(method, url, body and json.dumps(body), self.headers, timeout)
        self.said = f"{method} {url}: {status or ''} {text[:500]}"
        if status in (200, 201) and method != "DELETE":
            try:
                answer = json.loads(text)
                deadline = sent + (answer["waited_ms"] + answer["expires_in_ms"]) / 1000
                renew_at = sent + (answer["waited_ms"] + answer["renew_in_ms"]) / 1000
                with self.lock:
                    if sent > self.sent:  # one that was sent later may have been answered sooner
                        self.sent, self.token = sent, answer["fencing_token"]
                        self.deadline, self.renew_at = deadline, renew_at
            except (ValueError, KeyError, TypeError):
                return 0, pause  # not the gateway's answer
        if 400 <= status < 500 and '"code"' not in text:
            return 0, pause  # a proxy's
        if status in (200, 201, 204, 400, 409, 412, 423):
            self.turn = turn
        return status, pause

    def insist(self, method, until):
        """Asks until a gateway decides, all refuse to let this wait, or the time is over. Returns the last status."""
        status = asked = refused = 0
        while refused < len(GATEWAYS) and (left := until - now()) > 0:
            if method == "POST":
                wait = min(left, 5)
                body = {"ttl_ms": TTL, "wait_ms": int(wait * 1000), "owner": "python"}
                status, pause = self.ask(method, body, wait + 3)
                if status in (200, 201) and self.left() > 0 or status in (404, 405, 413, 428):
                    break
                refused = refused + 1 if status // 100 == 3 or status in (401, 403, 421) else 0
            else:
                status, pause = self.ask(method, None, min(left, 2))
            if status in (204, 400, 409, 412):
                break
            asked += 1
            if status == 423:  # the place in the queue is kept for some seconds
                time.sleep(0.1)
            elif asked % len(GATEWAYS) == 0:
                time.sleep(min(max(pause, 0.5), 5, max(0, until - now())))
        return status

    def acquire(self, wait):
        status = self.insist("POST", now() + wait)
        if status not in (200, 201) or self.left() <= 0:
            exits = {401: 77, 403: 77, 409: 75, 412: 75, 423: 75, 429: 75}
            otherwise = 75 if '"quarantined"' in self.said else 64 if 300 <= status < 500 else 69
            fail(exits.get(status, otherwise), "the lock is not acquired: " + self.said)
        threading.Thread(target=self.watch, daemon=True).start()
        threading.Thread(target=self.keep, daemon=True).start()

    def left(self):
        return self.deadline - now() - TTL / 10000  # a tenth to spare

    def end(self, why):  # the main thread can't be asked, and perhaps nobody reads what is said
        try:
            threading.Thread(target=os.write, args=(2, (why + "\n").encode()), daemon=True).start()
            time.sleep(0.1)
        finally:
            os._exit(124)

    def watch(self):  # no request, no output: nothing that can wait
        while not self.released.wait(max(0.02, min(self.left(), 0.2))):
            if self.left() <= 0:
                self.end("the lease is over; " + self.said)

    def keep(self):
        while not self.released.wait(max(0.02, min(self.renew_at - now(), 1))):
            if now() < self.renew_at:
                continue
            left = max(0.05, self.left())
            self.renew_at = now() + left / 3  # no answer by then: another one beside it
            threading.Thread(target=self.renew, args=[left], daemon=True).start()

    def renew(self, timeout):
        status, pause = self.ask("PUT", {"ttl_ms": TTL}, timeout)
        if status == 412 and not self.released.is_set():
            self.end("the lease is lost; " + self.said)
        if status != 200:
            left = self.left()
            self.renew_at = min(self.renew_at, now() + max(left / 10, min(pause, left / 4)))

    def release(self):
        self.released.set()
        self.insist("DELETE", now() + 5)


def on_signals(handler):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)


def end(number, _):
    on_signals(signal.SIG_IGN)  # another one must not interrupt the release
    sys.exit(128 + number)


if not STORAGE:
    fail(2, "set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report")
if not GATEWAYS or not all(re.match(r"https?://([^/:@]+|\[[^/]+\])(:\d+)?(/|\Z)", url) for url in GATEWAYS):
    fail(64, "FENCEPOST has to be a list of URLs like http://127.0.0.1:8080")
lease = Lease(LOCK)
on_signals(end)
try:
    lease.acquire(30)
    for part in range(1, 21):
        left = lease.left()
        if left <= 0:  # this process may have stood still: look before every write
            fail(124, "the lease is over; " + lease.said)
        headers = {"Fencing-Token": str(lease.token)}
        status, said, _ = request("PUT", STORAGE, f"part {part} by python", headers, max(0.05, left))
        if status // 100 != 2:
            over = status == 412 or status == 0 and lease.left() <= 0
            fail(124 if over else 1, f"part {part} is not written: {status or ''} {said[:500]}")
        time.sleep(0.2)
    print("20 parts are written")
finally:
    on_signals(signal.SIG_IGN)
    lease.release()
