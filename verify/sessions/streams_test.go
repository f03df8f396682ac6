package sessions

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// What a gateway writes is read as events: over HTTP itself, by curl, and in a plain answer.
func TestReader(t *testing.T) {
	const granted = "event: granted\ndata: {\"name\":\"a\",\"lease_id\":\"L\",\"fencing_token\":7}\n\n"
	for _, c := range []struct{ title, text, kinds, code, token string }{
		{"a stream of curl", granted + ": \n\nevent: renewed\ndata: {\"name\":\"a\"}\n\n", "granted renewed closed", "", "a7"},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n45\r\n" + granted + "\r\n2f\r\nevent: lost\ndata: {\"code\":\"replaced\"}\n\n\r\n0\r\n\r\n", "granted lost closed", "replaced", "a7"},
		{"several names", "event: granted\ndata: {\"locks\":[{\"name\":\"b\",\"fencing_token\":3}]}\n\nevent: lost\ndata: {\"code\":\"lease_lost\",\"name\":\"b\"}\n\n", "granted lost closed", "lease_lost", "b3"},
		{"a plain answer", "HTTP/1.1 409 Conflict\r\nContent-Type: application/problem+json\r\n\r\n{\"code\":\"replaced\"}", "refused closed", "replaced", ""},
		{"nothing", "", "closed", "", ""},
	} {
		r := read(strings.NewReader(c.text))
		if !await(time.Minute, func() bool { events := r.said(); return len(events) > 0 && events[len(events)-1].kind == "closed" }) {
			t.Fatalf("%s: it is not read to its end in a minute", c.title)
		}
		var kinds []string
		for _, e := range r.said() {
			kinds = append(kinds, e.kind)
		}
		if got := strings.Join(kinds, " "); got != c.kinds {
			t.Errorf("%s: %s, want %s", c.title, got, c.kinds)
		}
		if last, _ := ended(r.said()); last.Code != c.code {
			t.Errorf("%s: ended with %q", c.title, last.Code)
		}
		if token := r.told().tokens()[c.token[:min(len(c.token), 1)]]; c.token != "" && token != uint64(c.token[1]-'0') {
			t.Errorf("%s: the token is %d", c.title, token)
		}
		if err := r.await(); (err == nil) != (c.token != "") {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}

// One stream of a lease id is left, and says so; each other one is told why it ended.
func TestJudge(t *testing.T) {
	mark := time.Now()
	granted, renewed, before := event{kind: "granted"}, event{kind: "renewed", at: mark}, event{kind: "renewed", at: mark.Add(-1)}
	replaced, refused, lost := event{kind: "lost", Code: "replaced"}, event{kind: "refused", Code: "replaced"}, event{kind: "lost", Code: "lease_lost"}
	closed := event{kind: "closed"}
	good := []event{granted, before, renewed}
	for title, c := range map[string]struct {
		streams  [][]event
		renewals bool
		right    bool
	}{
		"one is left":                  {[][]event{{granted, before, replaced, closed}, good}, true, true},
		"of three":                     {[][]event{{refused, closed}, good, {granted, replaced}}, true, true},
		"both renew":                   {[][]event{good, good}, true, false},
		"one is not renewed, not told": {[][]event{good, {granted, before}}, true, false},
		"none is left":                 {[][]event{{granted, replaced}, {refused}}, true, false},
		"not renewed":                  {[][]event{{granted, before}, {refused}}, true, false},
		"a long TTL":                   {[][]event{{granted}, {granted, replaced}}, false, true},
		"two with a long TTL":          {[][]event{{granted}, {granted}}, false, false},
		"lost":                         {[][]event{good, {granted, lost}}, true, false},
		"ended without a word":         {[][]event{good, {granted, closed}}, true, false},
		"told nothing":                 {[][]event{good, {}}, true, false},
		"still in the queue":           {[][]event{good, {{kind: "queued"}}}, true, false},
	} {
		if err := judge(c.streams, mark, c.renewals); (err == nil) != c.right || errors.Is(err, errNone) != (title == "none is left") {
			t.Errorf("%s: %v", title, err)
		}
	}
}
