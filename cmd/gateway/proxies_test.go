package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/proxytest"
	"fencepost/internal/redis/redistest"
)

// fencedFiles is the file store of docs/storage/nginx.conf before a gateway.
type fencedFiles struct {
	t       *testing.T
	gateway *gatewayProcess
	front   string // where clients come
	inner   string // behind it, where bodies have not been taken in yet
	dir     string // the files
}

// startFencedFiles runs nginx with the configuration that the documents show, but for
// addresses and paths.
func startFencedFiles(t *testing.T) *fencedFiles {
	t.Helper()
	dir := t.TempDir()
	f := &fencedFiles{t: t, gateway: startOn(t, "embedded"), front: redistest.FreeAddr(t), inner: redistest.FreeAddr(t), dir: filepath.Join(dir, "files")}
	conf, err := os.ReadFile("../../docs/storage/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(
		"127.0.0.1:8080", f.gateway.addr, "127.0.0.1:8081", f.front, "127.0.0.1:8082", f.inner, "root /srv;", "root "+dir+";",
		"http {", "http {\n"+proxytest.Within(dir),
	).Replace(string(conf))
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	proxytest.NginxWith(t, f.front, dir, text)
	eventually(t, "GET", "http://"+f.front+"/files/none", 404)
	return f
}

// next takes the lock of a file from whoever has it.
func (f *fencedFiles) next(name string) (token string) {
	f.t.Helper()
	url := "http://" + f.gateway.addr + "/locks/" + name
	status, answer, err := request("GET", url, "", nil)
	var lock struct {
		Held  bool
		Token int64 `json:"fencing_token"`
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(answer, &lock) != nil {
		f.t.Fatal(status, string(answer), err)
	}
	if lock.Held {
		if status, answer, err := request("DELETE", url, "", map[string]string{"If-Match": fmt.Sprintf(`"%d"`, lock.Token)}); status != http.StatusNoContent {
			f.t.Fatal(status, string(answer), err)
		}
	}
	status, answer, err = request("POST", url, "", nil)
	if err != nil || status != http.StatusCreated || json.Unmarshal(answer, &lock) != nil {
		f.t.Fatal(status, string(answer), err)
	}
	return strconv.FormatInt(lock.Token, 10)
}

// write sends a request with a token, none if it is empty, and wants one of some statuses.
func (f *fencedFiles) write(method, path, token, body string, want ...int) {
	f.t.Helper()
	header := map[string]string{"Origin": "http://elsewhere.example"} // the gateway is not to judge it
	if token != "" {
		header["Fencing-Token"] = token
	}
	status, answer, err := request(method, "http://"+f.front+path, body, header)
	for _, one := range want {
		if err == nil && status == one {
			return
		}
	}
	f.t.Errorf("%s %s with token %q: %d %s %v, want %d", method, path, token, status, answer, err, want)
}

func (f *fencedFiles) has(name, want string) {
	f.t.Helper()
	status, answer, err := request("GET", "http://"+f.front+"/files/"+name, "", nil)
	if err != nil || want != "" && (status != http.StatusOK || string(answer) != want) || want == "" && status != http.StatusNotFound {
		f.t.Errorf("%s is %d %q %v, want %q", name, status, answer, err, want)
	}
}

func TestNginxFence(t *testing.T) {
	t.Parallel()
	f := startFencedFiles(t)
	f.write("PUT", "/files/a/b.txt", "", "none", 428)
	f.write("PUT", "/files/a/b.txt", "1795184727477314", "forged", 412)
	f.write("PUT", "/files/a/b.txt", "x", "malformed", 412)
	f.has("a/b.txt", "")

	first := f.next("files/a/b.txt")
	f.write("PUT", "/files/a/b.txt", first, "one", 201)
	f.write("PUT", "/files/a/b.txt?x=1", first, "one again", 204)
	f.has("a/b.txt", "one again")
	second := f.next("files/a/b.txt")
	f.write("PUT", "/files/a/b.txt", first, "nobody newer has written", 204)
	f.write("PUT", "/files/a/b.txt", second, "two", 204)
	f.write("PUT", "/files/a/b.txt", first, "stale", 412)
	f.write("DELETE", "/files/a/b.txt", first, "", 412)
	f.has("a/b.txt", "two")
	f.write("PUT", "/files/a/%62.txt", first, "stale by another spelling", 412)
	for _, path := range []string{"/files/a//b.txt", "/files/a/./b.txt", "/files/x/../a/b.txt", "/files/a%2F%2Fb.txt", "//files/a/b.txt"} {
		f.write("PUT", path, second, "another spelling of the name", 412)
	}
	f.write("PUT", "/files/other.txt", second, "of another name", 412)
	f.write("MOVE", "/files/a/b.txt", second, "", 405)
	f.has("a/b.txt", "two")
	f.write("DELETE", "/files/a/b.txt", second, "", 204)
	f.has("a/b.txt", "")

	third := f.next("files/a/b.txt")
	f.write("PUT", "/files/a/b.txt", third, "three", 201)
	if err := f.gateway.end(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	f.write("PUT", "/files/a/b.txt", third, "nobody was asked", 503)
	f.write("PUT", "/files/a/b.txt", "", "nobody was asked", 503)
	f.has("a/b.txt", "three")
}

// upload is a PUT whose body has not come to its end.
type upload struct {
	net.Conn
	rest string
}

func (f *fencedFiles) upload(addr, name, token, body string) *upload {
	f.t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	half := len(body) / 2
	fmt.Fprintf(conn, "PUT /%s HTTP/1.1\r\nHost: localhost\r\nFencing-Token: %s\r\nContent-Length: %d\r\n\r\n%s", name, token, len(body), body[:half])
	return &upload{conn, body[half:]}
}

// finish sends the rest of the body, and returns the status of the answer.
func (u *upload) finish(t *testing.T) int {
	t.Helper()
	u.SetDeadline(time.Now().Add(patience))
	io.WriteString(u, u.rest)
	answer, err := http.ReadResponse(bufio.NewReader(u), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return answer.StatusCode
}

// A slow upload is admitted when all of it has come. Without the server in front it is
// admitted when it begins, and is written behind a newer one: what a check before a write
// can't do.
func TestNginxFenceOfASlowUpload(t *testing.T) {
	t.Parallel()
	f := startFencedFiles(t)
	const name = "files/slow.txt"
	first := f.next(name)
	slow := f.upload(f.front, name, first, "slow and stale")
	second := f.next(name)
	f.write("PUT", "/"+name, second, "newer", 201, 204)
	if status := slow.finish(t); status != http.StatusPreconditionFailed {
		t.Errorf("a slow upload is answered %d behind a newer one", status)
	}
	f.has("slow.txt", "newer")

	third := f.next(name)
	slow = f.upload(f.inner, name, third, "admitted too soon")
	for deadline := time.Now().Add(patience); ; <-time.After(10 * time.Millisecond) {
		_, answer, err := request("GET", "http://"+f.gateway.addr+"/locks/"+name, "", nil)
		if err == nil && strings.Contains(string(answer), `"highest_admitted":`+third) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("it was not admitted when it began: %s %v", answer, err)
		}
	}
	f.write("PUT", "/"+name, f.next(name), "newest", 204)
	if status := slow.finish(t); status != http.StatusNoContent {
		t.Errorf("without the server in front it is answered %d: what proxies.md says is not so", status)
	}
	f.has("slow.txt", "admitted too soon")
}
