# Writes a report of 20 parts under the lock reports/nightly. Needs Python 3.8 and its standard library. docs/clients.md has the
# exit statuses.
#   STORAGE=http://127.0.0.1:8090/report python3 examples/nightly.py
#
# A thread renews the lease. Another thread, which does nothing else, ends the process before the deadline, whatever the
# others wait for.
import contextlib, http.client, json, os, queue, secrets, signal, socket, sys, threading, time
from urllib.parse import urlsplit

GATEWAY = os.environ.get("FENCEPOST", "http://127.0.0.1:8080")
STORAGE = os.environ.get("STORAGE")
KEY = os.environ.get("FENCEPOST_KEY")
TTL = 30000

if not STORAGE:
    print("set STORAGE to the URL that takes the parts of the report, such as http://127.0.0.1:8090/report", file=sys.stderr)
    sys.exit(2)


def now():  # suspended time included, where there is such a clock
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def request(method, url, body, headers, timeout):
    """Returns status and body; status 0: no answer in time, so nothing is known."""
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
            answers.put((answer.status, answer.read()))
        except Exception:
            answers.put((0, b""))
        finally:
            conn.close()

    threading.Thread(target=exchange, daemon=True).start()
    try:
        return answers.get(timeout=timeout)
    except queue.Empty:
        return 0, b""
    finally:  # what is still under way, as when a signal has come, is cut off
        given_up.set()
        with contextlib.suppress(AttributeError, OSError):
            conn.sock.shutdown(socket.SHUT_RDWR)


class Lease:
    def __init__(self, name):
        self.url = GATEWAY + "/locks/" + name
        self.id = "01" + secrets.token_hex(12).upper() + "." + secrets.token_urlsafe(16)
        self.headers = {"Lease-Id": self.id, **({"Authorization": "Bearer " + KEY} if KEY else {})}
        self.released = threading.Event()
        self.lock, self.sent = threading.Lock(), 0

    def ask(self, method, body, timeout):
        sent = now()
        status, text = request(method, self.url, body and json.dumps(body), self.headers, timeout)
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
                return 0  # not the gateway's answer
        return status

    def acquire(self, wait):
        give_up = now() + wait
        while (left := give_up - now()) > 0:
            body = {"ttl_ms": TTL, "wait_ms": int(left * 1000), "owner": "python"}
            status = self.ask("POST", body, left + 5)
            if status in (200, 201) and self.left() > 0:
                threading.Thread(target=self.watch, daemon=True).start()
                threading.Thread(target=self.keep, daemon=True).start()
                return True
            if status != 0 and status != 429 and status < 500:
                break
            time.sleep(1)  # not known, or not now: the same request again
        return False

    def left(self):
        return self.deadline - now() - TTL / 10000  # a tenth to spare

    def watch(self):  # no request, no output: nothing that can wait
        while not self.released.wait(max(0.02, min(self.left(), 0.2))):
            if self.left() <= 0:
                os._exit(124)  # the main thread can't be asked

    def keep(self):
        while not self.released.wait(max(0.02, min(self.renew_at - now(), 1))):
            if now() < self.renew_at:
                continue
            left = max(0.05, self.left())
            self.renew_at = now() + left / 3  # no answer by then: another one beside it
            threading.Thread(target=self.renew, args=[left], daemon=True).start()

    def renew(self, timeout):
        status = self.ask("PUT", {"ttl_ms": TTL}, timeout)
        if status == 412 and not self.released.is_set():
            os._exit(124)
        if status != 200:
            self.renew_at = min(self.renew_at, now() + self.left() / 10)

    def release(self):
        self.released.set()
        self.ask("DELETE", None, 5)


def on_signals(handler):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)


def end(number, _):
    on_signals(signal.SIG_IGN)  # another one must not interrupt the release
    sys.exit(128 + number)


lease = Lease("reports/nightly")
on_signals(end)
try:
    if not lease.acquire(30):
        sys.exit(75)
    for part in range(1, 21):
        left = lease.left()
        if left <= 0:  # this process may have stood still: look before every write
            sys.exit(124)
        headers = {"Fencing-Token": str(lease.token)}
        status, _ = request("PUT", STORAGE, f"part {part} by python", headers, max(0.05, left))
        if status == 412 or status == 0 and lease.left() <= 0:
            sys.exit(124)
        if status // 100 != 2:
            print(f"part {part} is not written: {status}", file=sys.stderr)
            sys.exit(1)
        time.sleep(0.2)
finally:
    on_signals(signal.SIG_IGN)
    lease.release()
