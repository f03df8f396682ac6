# Storage to try the programs with: it takes PUT with a Fencing-Token, refuses stale tokens with 412, and prints what it is
# sent. It keeps everything in memory. docs/storage is about real storage.
#   python3 examples/storage.py
# PORT is where it listens (default 8090).
import http.server, os, re, sys, threading

lock = threading.Lock()
admitted = {}  # of each path, the highest token that was admitted
contents = {}


class Storage(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        token, length = self.headers.get("Fencing-Token", ""), self.headers.get("Content-Length", "")
        if not re.fullmatch("[1-9][0-9]{0,15}", token) or int(token) >= 2**53 or not re.fullmatch("[0-9]{1,9}", length):
            return self.answer(400)
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            return self.answer(400)  # the client has gone
        with lock:  # comparing, remembering and writing are one step
            stale = int(token) < admitted.get(self.path, 0)
            if not stale:
                admitted[self.path], contents[self.path] = int(token), content
        print("refused" if stale else "admitted", token, content.decode(errors="replace"), flush=True)
        self.answer(412 if stale else 204)

    def do_GET(self):
        with lock:
            content = contents.get(self.path)
        self.answer(404 if content is None else 200, content or b"")

    def answer(self, status, content=b""):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


port = os.environ.get("PORT") or "8090"
try:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), Storage)
except (OSError, OverflowError, ValueError) as e:
    sys.exit(f"can't listen on 127.0.0.1:{port}: {e}; set PORT to a free port")
server.serve_forever()
