package fencingtest

import (
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func TestFaultsOfACaseNameTheLine(t *testing.T) {
	const held = "# Prose.\nacquire a lease=A\n=> ok fresh\n"
	for _, test := range []struct{ text, where string }{
		{"acquire a lease=A\n=> ok fresh\n", "x.txt:1:"},
		{"# Prose.\n", "x.txt:"},
		{"# Prose.\nobtain a lease=A\n", "x.txt:2:"},
		{"# Prose.\n\nacquire\n", "x.txt:3:"},
		{"# Prose.\nacquire a\n", "x.txt:2:"},
		{"# Prose.\nacquire a//b lease=A\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=a\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A lease=B\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A ttl=30\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A ttl>30s\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A token=#1\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A owner=\"x\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A via=3\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A stamp=R\n", "x.txt:2:"},
		{"# Prose.\ntakeback a lease=A\n", "x.txt:2:"},
		{"# Prose.\nbreak a token=1\n", "x.txt:2:"},
		{"# Prose.\nlist limit=x\n", "x.txt:2:"},
		{"# Prose.\nlist walk=yes\n", "x.txt:2:"},
		{"# Prose.\nadvance -1s\n", "x.txt:2:"},
		{"# Prose.\nskew 1 5s\n", "x.txt:2:"},
		{"# Prose.\nclock 5s\n", "x.txt:2:"},
		{"# Prose.\nneeds own_clock\nclock\n", "x.txt:3:"},
		{"# Prose.\nflush\n", "x.txt:2:"},
		{"# Prose.\nneeds luck\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A mode=any\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A hold=deep\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A wait=10\n", "x.txt:2:"},
		{"# Prose.\nacquire a lease=A keep=yes\n", "x.txt:2:"},
		{"# Prose.\nrenew a lease=A wait=1s\n", "x.txt:2:"},
		{"# Prose.\nconfirm a lease=A\n", "x.txt:2:"},
		{"# Prose.\nleave a lease=A\n", "x.txt:2:"},
		{"# Prose.\nhistory\n", "x.txt:2:"},
		{"# Prose.\nheartbeat a\n", "x.txt:2:"},
		{"# Prose.\nheard\n", "x.txt:"},
		{"# Prose.\nclaim a lease=A token=new\n", "x.txt:2:"},
		{"# Prose.\nneeds claims\nclaim a lease=A\n", "x.txt:3:"},
		{"# Prose.\nneeds claims\nclaim a lease=A token=newer\n", "x.txt:3:"},
		{"# Prose.\nneeds claims\nclaim a lease=A token=#1*2\n", "x.txt:3:"},
		{"# Prose.\nneeds claims\nclaim a lease=A token=7\n", "x.txt:3:"},
		{"# Prose.\nacquire a lease=A intent=1s\n", "x.txt:2:"},
		{"# Prose.\narrive a server=S\n", "x.txt:2:"},
		{"# Prose.\nneeds quarantine\narrive a\n", "x.txt:3:"},
		{"# Prose.\nneeds quarantine\narrive server=S\n", "x.txt:3:"},
		{"# Prose.\nneeds quarantine\narrive a server=S lost=yes\n", "x.txt:3:"},
		{"# Prose.\nneeds quarantine\narrive a server=S most=5\n", "x.txt:3:"},
		{"# Prose.\nneeds quarantine\nadvance 1s\narrive a server=S\n=> ok\ninspect b\n=> ok\n", "x.txt:6:"},
		{"# Prose.\nheed 1\n", "x.txt:2:"},
		{"# Prose.\nneeds quarantine\nheed 3\n", "x.txt:3:"},
		{held + "needs flush\n", "x.txt:4:"},
		{"# Prose.\n=> ok\n", "x.txt:2:"},
		{held + "=> ok fresh\n", "x.txt:4:"},
		{held + "inspect a\n", "x.txt:4:"},
		{held + "inspect a\ninspect a\n", "x.txt:5:"},
		{held + "advance 1s\n=> ok\n", "x.txt:5:"},
		{held + "inspect a\n=>\n", "x.txt:5:"},
		{held + "inspect a\n=> fine\n", "x.txt:5:"},
		{held + "inspect a\n=> lease_lost\n", "x.txt:5:"},
		{held + "inspect a\n=> lease_lost forgotten\n", "x.txt:5:"},
		{held + "inspect a\n=> ok expires_in<30s\n", "x.txt:5:"},
		{held + "inspect a\n=> ok owner=\"a\"b\"\n", "x.txt:5:"},
	} {
		_, err := parseCase("x.txt", test.text)
		if err == nil {
			t.Errorf("this was parsed:\n%s", test.text)
		} else if !strings.HasPrefix(err.Error(), test.where) {
			t.Errorf("%v\ndoes not start with %s for:\n%s", err, test.where, test.text)
		}
	}
}

func TestWrongExpectationsAreFound(t *testing.T) {
	const start = "# Prose.\nneeds own_clock\nacquire a lease=A ttl=10s owner=w1\n=> ok fresh token=#1\nadvance 1s\n"
	for _, test := range []struct{ command, right, wrong string }{
		{"inspect a", "ok holder=A", "locked holder=A"},
		{"inspect a", "ok holder=A", "ok holder=B"},
		{"inspect a", "ok holder=A", "ok free"},
		{"inspect a", "ok holder=A", "ok"},
		{"inspect a", "ok holder=A token=#1", "ok holder=A token=#2"},
		{"inspect a", "ok holder=A last_token=#1", "ok holder=A last_token=none"},
		{"inspect a", "ok holder=A owner=w1", `ok holder=A owner=""`},
		{"inspect a", "ok holder=A entries=0", "ok holder=A entries=1"},
		{"inspect a", "ok holder=A", "ok holder=A meta.n=1"},
		{"inspect a", "ok holder=A expires_in=9s", "ok holder=A expires_in=9.000001s"},
		{"inspect a", "ok holder=A expires_in<=9s", "ok holder=A expires_in<=8s"},
		{"inspect a", "ok holder=A expires_in=9s", "ok holder=A expires_in=soon"},
		{"inspect a", "ok holder=A entries=0", "ok holder=A entries=none"},
		{"inspect b", "ok free last_token=none", "ok free last_token=#1"},
		{"acquire a lease=A", "ok token=#1", "ok fresh token=#1"},
		{"acquire a lease=A", "ok", "ok token>#1"},
		{"acquire a lease=A", "ok", "ok token>#7"},
		{"acquire b lease=B", "ok fresh token>#1", "ok token>#1"},
		{"acquire a lease=B", "locked holder=A", "locked"},
		{"renew a lease=B", "lease_lost unknown", "lease_lost expired"},
		{"renew a lease=A", "ok margin=9s", "ok margin=10s"},
		{"release a lease=A", "ok ended=A:released:0s", "ok"},
		{"release a lease=A", "ok ended=A:released", "ok ended=none"},
		{"release a lease=A", "ok ended=A:released", "ok ended=A:expired"},
		{"release a lease=A", "ok ended=A:released", "ok ended=A:released:1s"},
		{"release a lease=A", "ok ended=A:released", "ok ended=A:released,B:released"},
		{"advance 10s\nrenew a lease=A", "lease_lost expired late=1s ended=A:expired:1s", "lease_lost expired ended=A:expired"},
		{"advance 9s\nrenew a lease=A", "lease_lost expired ended=A:expired", "lease_lost expired late=1s ended=A:expired"},
		{"list", "ok names=a end", "ok names=a more"},
		{"list", "ok names=a", "ok names=none"},
		{"list", "ok names=a", "ok"},
		{"expire", "ok ended=none next<=9s", "ok ended=none next<=8s"},
		{"expire", "ok ends=0", "ok ends=1"},
		{"stats", "ok held=1", "ok held=2"},
		{"stats", "ok held=1", "ok"},
		{"skew 1 5s\nrenew b lease=A", "clock_skew", "lease_lost unknown"},
	} {
		for _, outcome := range []string{test.right, test.wrong} {
			c, err := parseCase("x.txt", start+test.command+"\n=> "+outcome+"\n")
			if err != nil {
				t.Fatal(err)
			}
			err = c.run(t, openModel(twoGateways), twoGateways)
			if (err == nil) != (outcome == test.right) {
				t.Errorf("%s => %s: %v", test.command, outcome, err)
			}
		}
	}
}

func TestWrongExpectationsOfQueuesAreFound(t *testing.T) {
	const start = "# Prose.\nneeds gateways\nacquire a lease=A mode=shared limit=2\n=> ok fresh token=#1\n" +
		"acquire a lease=B wait=9s stamp=r2 via=2\n=> ok waits joined position=1 holder=A\n" +
		"acquire a lease=C mode=shared wait=9s keep stamp=r3\n=> ok waits joined position=2 holder=A\n"
	const taken = "leave a lease=B stamp=r2\n=> ok position=1 left=B holder=A,C granted=C\n"
	for _, test := range []struct{ command, right, wrong string }{
		{"acquire a lease=D wait=9s", "ok waits joined position=3 holder=A", "ok waits joined position=2 holder=A"},
		{"acquire a lease=D wait=9s", "ok waits joined position=3 holder=A", "ok waits position=3 holder=A"},
		{"acquire a lease=D wait=9s", "ok waits joined position=3 holder=A", "ok joined position=3 holder=A"},
		{"acquire a lease=D wait=9s", "ok waits joined position=3 holder=A", "ok waits joined holder=A"},
		{"acquire a lease=D wait=9s", "ok waits joined position=3 holder=A", "ok waits joined position=3"},
		{"acquire a lease=B wait=9s stamp=r4 via=2", "ok waits position=1 holder=A replaced=r2", "ok waits position=1 holder=A"},
		{"acquire a lease=B wait=9s stamp=r4 via=2", "ok waits position=1 holder=A replaced=r2", "ok waits position=1 holder=A replaced=r3"},
		{"acquire a lease=C stamp=r3", "locked position=2 holder=A left=C", "locked holder=A left=C"},
		{"acquire a lease=C stamp=r3", "locked position=2 holder=A left=C", "locked position=2 holder=A"},
		{"inspect a", "ok holder=A waiting=2 waiters=B,C", "ok holder=A waiting=1"},
		{"inspect a", "ok holder=A waiting=2 waiters=B,C", "ok holder=A waiters=C,B"},
		{"inspect a", "ok holder=A mode=shared limit=2 slot=0", "ok holder=A mode=exclusive"},
		{"inspect a", "ok holder=A mode=shared limit=2 slot=0", "ok holder=A slot=none"},
		{"inspect a", "ok holder=A hold=1 waited=0s", "ok holder=A hold=2"},
		{"release a lease=A", "ok ended=A:released granted=B~", "ok ended=A:released granted=B"},
		{"release a lease=A", "ok ended=A:released granted=B~", "ok ended=A:released granted=B~,C"},
		{"release a lease=A", "ok ended=A:released granted=B~ B.token>#1", "ok ended=A:released granted=B~ B.token=#1"},
		{"release a lease=A", "ok ended=A:released granted=B~", "ok ended=A:released"},
		{"release a lease=A hold=2", "ok hold=1", "ok"},
		{"release a lease=A hold=2", "ok hold=1", "ok hold=2"},
		{"leave a lease=B stamp=r2", "ok position=1 left=B holder=A,C granted=C C.slot=none", "ok position=1 left=B holder=A granted=C"},
		{"leave a lease=B stamp=r2", "ok position=1 left=B holder=A,C granted=C C.slot=none", "ok position=1 left=B holder=A,C granted=C C.slot=1"},
		{"leave a lease=B stamp=r2", "ok position=1 left=B holder=A,C granted=C", "ok position=1 left=B holder=A,C granted=none"},
		{"leave a lease=B stamp=r2", "ok position=1 left=B holder=A,C granted=C", "ok position=1 holder=A,C granted=C"},
		{"history a", "ok holder=A past=none", "ok holder=A past=A:released"},
		{taken + "heard", "ok told=C", "ok told=none"},
		{taken + "heard", "ok told=C", "ok told=C~"},
		{taken + "heard", "ok told=C", "ok told=C,C"},
		{taken + "heard", "ok told=C", "ok"},
		{taken + "heard via=2", "ok told=none", "ok told=B"},
	} {
		for _, outcome := range []string{test.right, test.wrong} {
			c, err := parseCase("x.txt", start+test.command+"\n=> "+outcome+"\n")
			if err != nil {
				t.Fatal(err)
			}
			err = c.run(t, openModel(twoGateways), twoGateways)
			if (err == nil) != (outcome == test.right) {
				t.Errorf("%s => %s: %v", test.command, outcome, err)
			}
		}
	}
}

func TestWrongExpectationsOfClaimsAreFound(t *testing.T) {
	const start = "# Prose.\nneeds claims\nneeds quarantine\nneeds one_state\nacquire a lease=A ttl=10s\n=> ok fresh token=#1\n"
	const mine = "claim a lease=A token=#1\n=> ok claimed\n"
	const away = "arrive a server=S least=5s most=1m\n=> ok quarantine=10s\n"
	for _, test := range []struct{ command, right, wrong string }{
		{"claim a lease=A token=new", "ok claimed token>#1", "ok token>#1"},
		{"claim a lease=A token=new", "ok claimed token>#1", "ok claimed token=#1"},
		{"claim a lease=A token=#1+3", "ok claimed token>#1 token=#2", "ok claimed token=#2 token=#1"},
		{"claim a lease=A token=#1", "ok claimed token=#1", "ok claimed token>#1"},
		{mine + "claim a lease=A token=#1-1", "stale_token current_token=#1", "stale_token"},
		{mine + "claim a lease=A token=#1-1", "stale_token current_token=#1", "ok claimed"},
		{"arrive a server=S least=5s most=1m", "ok quarantine=10s longest=10s", "ok quarantine=5s"},
		{"arrive a server=S least=5s most=1m", "ok quarantine=10s longest=10s", "ok longest=10s"},
		{"arrive a server=S least=5s most=1m", "ok quarantine=10s longest=10s", "ok quarantine=10s longest=5s"},
		{away + "stats", "ok held=1 quarantine=10s", "ok held=1"},
		{away + "acquire b lease=B", "quarantined retry_after=10s", "quarantined retry_after=5s"},
		{away + "acquire b lease=B", "quarantined", "locked free"},
	} {
		for _, outcome := range []string{test.right, test.wrong} {
			c, err := parseCase("x.txt", start+test.command+"\n=> "+outcome+"\n")
			if err != nil {
				t.Fatal(err)
			}
			err = c.run(t, openModel(twoGateways), twoGateways)
			if (err == nil) != (outcome == test.right) {
				t.Errorf("%s => %s: %v", test.command, outcome, err)
			}
		}
	}
}

// TestModelIsANode: a model that remembers nothing is taken into service, at once if it
// is new, and after a quarantine otherwise, and only if it is the one that is named.
func TestModelIsANode(t *testing.T) {
	now := Epoch
	for _, isNew := range []bool{true, false} {
		m := NewModel(func() fencing.Instant { return now })
		memory, err := m.Memory(t.Context())
		if err != nil || !memory.Blank || memory.InService {
			t.Fatalf("%+v, %v", memory, err)
		}
		if _, err := m.Enroll(t.Context(), "another", isNew, time.Minute); codeOf(err) != fencing.CodeUnavailable {
			t.Errorf("as another server: %v", err)
		}
		want := map[bool]time.Duration{true: 0, false: time.Minute}[isNew]
		for range 2 {
			if left, err := m.Enroll(t.Context(), memory.Server, isNew, time.Minute); err != nil || left != want {
				t.Fatalf("new: %t: for %s, %v", isNew, left, err)
			}
		}
		if memory, err = m.Memory(t.Context()); err != nil || !memory.InService || memory.Quarantine != want || memory.Longest != time.Minute {
			t.Errorf("in service: %+v, %v", memory, err)
		}
		_, err = m.Do(t.Context(), acquireOf("a", leaseOf("A")))
		if want := map[bool]fencing.Code{true: fencing.CodeOK, false: fencing.CodeQuarantined}[isNew]; codeOf(err) != want {
			t.Errorf("new: %t: %v", isNew, err)
		}
	}
}

// TestHistoriesAreCases prints histories as cases and plays those.
func TestHistoriesAreCases(t *testing.T) {
	caps := twoGateways
	for seed := range uint64(50) {
		commands, err := randomHistory(t, openModel(caps), caps, seed)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		text := writeCase(t, caps, "A history.", commands)
		c, err := parseCase("history.txt", text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if err := c.run(t, openModel(caps), caps); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
	}
}

func TestCasesAreNamedAfterVerbs(t *testing.T) {
	all, err := loadCases()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range all {
		topic, _, _ := strings.Cut(strings.TrimPrefix(c.file, "testdata/"), "_")
		seen[topic] = true
	}
	for _, topic := range []string{"acquire", "renew", "release", "break", "takeback", "conflict", "expire", "inspect", "list", "token", "skew", "clock",
		"confirm", "leave", "evict", "history", "heartbeat", "queue", "handoff", "shared", "permits", "rest", "set", "hold", "downgrade", "gateway", "claim", "intent", "delay", "quarantine", "admit", "judge"} {
		if !seen[topic] {
			t.Errorf("no case is about %s", topic)
		}
		delete(seen, topic)
	}
	for topic := range seen {
		t.Errorf("a case is about %q, which is no topic", topic)
	}
}

func TestClosedModelIsUnavailable(t *testing.T) {
	b := newModelBackend(twoGateways)
	if _, err := b.Store(0).Do(t.Context(), acquireOf("a", leaseOf("A"))); err != nil {
		t.Fatal(err)
	}
	if err := b.Store(0).Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Store(0).Check(t.Context()); codeOf(err) != fencing.CodeUnavailable {
		t.Errorf("Check after Close: %v", err)
	}
	if _, err := b.Store(0).Do(t.Context(), fencing.InspectRequest{Name: "a"}); codeOf(err) != fencing.CodeUnavailable {
		t.Errorf("Inspect after Close: %v", err)
	}
	out, err := b.Store(1).Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || !out.Lock.Held() {
		t.Errorf("the other handle: %+v, %v", out.Lock, err)
	}
	snapshot := b.handles[1].Snapshot()
	delete(snapshot.Records, "a")
	if len(b.handles[1].Snapshot().Records) != 1 {
		t.Error("Snapshot is not a copy")
	}
}
