package redis

import (
	"slices"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

func TestParseTopologies(t *testing.T) {
	for _, tt := range []struct {
		url, kind            string
		addrs                []string
		user, password, name string
		db                   int
		tls                  bool
	}{
		{url: "redis+sentinel://a,b:1,[::1]/locks", kind: "sentinel", addrs: []string{"a:26379", "b:1", "[::1]:26379"}, name: "locks"},
		{url: "rediss+sentinel://u:p%40%2C@a/locks/7", kind: "sentinel", addrs: []string{"a:26379"}, user: "u", password: "p@,", name: "locks", db: 7, tls: true},
		{url: "redis+cluster://:a,b@A,[fe80::1%25eth0]:7000", kind: "cluster", addrs: []string{"a:6379", "[fe80::1%eth0]:7000"}, password: "a,b"},
		{url: "rediss+cluster://a/", kind: "cluster", addrs: []string{"a:6379"}, tls: true},
	} {
		l, err := parseURL(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if l.kind != tt.kind || !slices.Equal(l.addrs, tt.addrs) || l.username != tt.user || l.password != tt.password ||
			l.master != tt.name || l.db != tt.db || l.tls != tt.tls || Kind(tt.url) != tt.kind {
			t.Errorf("%s: got %+v", tt.url, l)
		}
	}
	for _, url := range []string{
		"redis://a,b", "redis+sentinel://a,b,c", "redis+sentinel://a,b,c/", "redis+sentinel:///locks", "redis+sentinel://a/locks/x", "redis+sentinel://a/locks/1/2",
		"redis+sentinel://a,,b/locks", "redis+sentinel://a,a:26379/locks", "redis+sentinel://a:0/locks", "redis+sentinel://::1/locks", "redis+sentinel://[a]/locks",
		"redis+cluster://", "redis+cluster://a/1", "redis+cluster://a,A:6379", "redis+cluster://a?b=c", "redis+cluster://[::1/", "redis+cluster://[::1]x", "unix+cluster:///s",
		"redis+quorum://a", "redis+quorum://a,b,c,d", "redis+quorum://a,b,c,d,e,f,g,h,i", "redis+quorum://a,b,a", "redis+quorum://a,b,c/x",
		"redis+sentinel://u:hunter2@a,b:x/locks", "redis+cluster://u:hunter2,a", "redis+cluster://u:hunter2/x@a,b", "redis+quorum://u:hunter2@a,b", "redis+quorum://u@a,b,c/hunter2",
		"redis+sentinel://u:1@2/hunter2@a,b/locks/hunter2",
	} {
		if err := CheckURL(url); err == nil {
			t.Errorf("%q was accepted", url)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error for %q tells the password: %v", url, err)
		}
	}
	for url, want := range map[string]string{
		"redis://h": "redis", "REDISS://h": "redis", "unix:///s": "redis", "redis+quorum://": "quorum", "embedded": "", "": "", "http://h": "",
	} {
		if got := Kind(url); got != want {
			t.Errorf("the kind of %q is %q, want %q", url, got, want)
		}
	}
}

func TestSplitQuorum(t *testing.T) {
	for url, want := range map[string][]string{
		"redis+quorum://a,b:1,[::1]":       {"redis://a:6379", "redis://b:1", "redis://[::1]:6379"},
		"rediss+quorum://u:p%2F@a,b,c/7":   {"rediss://u:p%2F@a:6379/7", "rediss://u:p%2F@b:6379/7", "rediss://u:p%2F@c:6379/7"},
		"redis+quorum://:p@a,b,c,d,e,f,g/": {"redis://:p@a:6379/", "redis://:p@b:6379/", "redis://:p@c:6379/", "redis://:p@d:6379/", "redis://:p@e:6379/", "redis://:p@f:6379/", "redis://:p@g:6379/"},
	} {
		got, err := SplitQuorum(url)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v, want %q", url, got, err, want)
		}
	}
	if _, err := SplitQuorum("redis://a"); err == nil {
		t.Error("a URL of one Redis was split")
	}
	if _, err := parseURL("redis+quorum://a,b,c"); err == nil {
		t.Error("a quorum can be opened as one Redis")
	}
}

// Whatever the URL, it is refused without telling of a password, or understood in
// full.
func FuzzParseURL(f *testing.F) {
	for _, url := range []string{
		"redis://h", "unix:///s?db=1", "redis+sentinel://u:p@a,b,[::1]:1/locks/2", "rediss+cluster://a,b", "redis+quorum://:p@a,b,c/1",
	} {
		f.Add(url, "secret")
	}
	f.Fuzz(func(t *testing.T, url, password string) {
		if len(password) >= 12 { // shorter ones may be words of the errors
			scheme, rest, _ := strings.Cut(url, "://")
			if err := CheckURL(scheme + "://user:" + password + "@" + rest); err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("%v tells the password", err)
			}
		}
		if CheckURL(url) != nil {
			return
		}
		urls := []string{url}
		if Kind(url) == kindQuorum {
			urls, _ = SplitQuorum(url)
			if len(urls) < fencing.MinNodes || len(urls) > fencing.MaxNodes || len(urls)%2 == 0 {
				t.Fatalf("%q was split in %d", url, len(urls))
			}
		}
		for _, one := range urls {
			l, err := parseURL(one)
			if err != nil || len(l.addrs) == 0 || slices.Contains(l.addrs, "") || l.kind == kindSentinel && l.master == "" {
				t.Errorf("%q: got %+v, %v", one, l, err)
			}
		}
	})
}

func TestMayHaveMoved(t *testing.T) {
	for text, want := range map[string]bool{
		"MOVED 1 h:1": true, "READONLY no": true, "CLUSTERDOWN no": true, "ASK 1 h:1": false, "TRYAGAIN no": false, "NOSCRIPT no": false, "ERR no": false,
	} {
		if got := mayHaveMoved(answered(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
	if mayHaveMoved(nil) || !mayHaveMoved(errReplica) {
		t.Error("no error, or a replica, is misread")
	}
}

// answered is an error as Redis answers it.
type answered string

func (a answered) Error() string { return string(a) }
func (answered) RedisError()     {}
