package fencing_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// valid is an acquire that is within all bounds.
func valid() fencing.AcquireRequest {
	return fencing.AcquireRequest{Name: "a", Mode: fencing.ModeExclusive, Hold: 1, TTL: 30 * time.Second}
}

func entries(n int) map[string]string {
	metadata := map[string]string{}
	for i := range n {
		metadata[fmt.Sprint("key", i)] = "value"
	}
	return metadata
}

func TestCheckAcquire(t *testing.T) {
	type request = fencing.AcquireRequest
	long := func(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("x", n%2) }
	for _, test := range []struct {
		name   string
		change func(*request)
		field  string // at fault; empty if none is
	}{
		{"defaults", func(r *request) {}, ""},
		{"shortest TTL", func(r *request) { r.TTL = 100 * time.Millisecond }, ""},
		{"TTL too short", func(r *request) { r.TTL = 99 * time.Millisecond }, "ttl_ms"},
		{"no TTL", func(r *request) { r.TTL = 0 }, "ttl_ms"},
		{"negative TTL", func(r *request) { r.TTL = -time.Second }, "ttl_ms"},
		{"longest TTL", func(r *request) { r.TTL = 24 * time.Hour }, ""},
		{"TTL too long", func(r *request) { r.TTL = 24*time.Hour + time.Millisecond }, "ttl_ms"},
		{"negative wait", func(r *request) { r.Wait = -time.Millisecond }, "wait_ms"},
		{"shortest wait", func(r *request) { r.Wait = time.Millisecond }, ""},
		{"longest wait", func(r *request) { r.Wait = time.Minute }, ""},
		{"wait too long", func(r *request) { r.Wait = time.Minute + time.Millisecond }, "wait_ms"},
		{"max hold of the TTL", func(r *request) { r.MaxHold = r.TTL }, ""},
		{"max hold below the TTL", func(r *request) { r.MaxHold = r.TTL - time.Millisecond }, "max_hold_ms"},
		{"negative max hold", func(r *request) { r.MaxHold = -1 }, "max_hold_ms"},
		{"longest max hold", func(r *request) { r.MaxHold = 30 * 24 * time.Hour }, ""},
		{"longest lock delay", func(r *request) { r.LockDelay = time.Minute }, ""},
		{"lock delay too long", func(r *request) { r.LockDelay = time.Minute + time.Millisecond }, "lock_delay_ms"},
		{"negative lock delay", func(r *request) { r.LockDelay = -1 }, "lock_delay_ms"},
		{"max hold too long", func(r *request) { r.MaxHold = 30*24*time.Hour + time.Millisecond }, "max_hold_ms"},
		{"no mode", func(r *request) { r.Mode = "" }, ""},
		{"other mode", func(r *request) { r.Mode = "Exclusive" }, "mode"},
		{"shared", func(r *request) { r.Mode = fencing.ModeShared }, ""},
		{"limit of an exclusive lease", func(r *request) { r.Limit = 1 }, "limit"},
		{"smallest limit", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, 1 }, ""},
		{"largest limit", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, 10_000 }, ""},
		{"limit too large", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, 10_001 }, "limit"},
		{"negative limit", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, -1 }, "limit"},
		{"no hold", func(r *request) { r.Hold = 0 }, "hold"},
		{"negative hold", func(r *request) { r.Hold = -1 }, "hold"},
		{"second hold", func(r *request) { r.Hold = 2 }, ""},
		{"deepest hold", func(r *request) { r.Hold = 1000 }, ""},
		{"hold too deep", func(r *request) { r.Hold = 1001 }, "hold"},
		{"longest owner", func(r *request) { r.Owner = long(256) }, ""},
		{"owner too long", func(r *request) { r.Owner = long(257) }, "owner"},
		{"owner with a newline", func(r *request) { r.Owner = "a\nb" }, "owner"},
		{"owner with NUL", func(r *request) { r.Owner = "\x00" }, "owner"},
		{"owner with DEL", func(r *request) { r.Owner = "\x7f" }, "owner"},
		{"owner with a C1 control", func(r *request) { r.Owner = "\u0085" }, "owner"},
		{"owner with broken UTF-8", func(r *request) { r.Owner = "a\xff" }, "owner"},
		{"owner in another alphabet", func(r *request) { r.Owner = "работник ☂ 𝄞" }, ""},
		{"most entries", func(r *request) { r.Metadata = entries(16) }, ""},
		{"too many entries", func(r *request) { r.Metadata = entries(17) }, "metadata"},
		{"empty key", func(r *request) { r.Metadata = map[string]string{"": "x"} }, "metadata"},
		{"longest key", func(r *request) { r.Metadata = map[string]string{long(64): "x"} }, ""},
		{"key too long", func(r *request) { r.Metadata = map[string]string{long(65): "x"} }, "metadata"},
		{"key with a tab", func(r *request) { r.Metadata = map[string]string{"a\tb": "x"} }, "metadata"},
		{"empty value", func(r *request) { r.Metadata = map[string]string{"a": ""} }, ""},
		{"longest value", func(r *request) { r.Metadata = map[string]string{"a": long(256)} }, ""},
		{"value too long", func(r *request) { r.Metadata = map[string]string{"a": long(257)} }, "metadata"},
		{"value with broken UTF-8", func(r *request) { r.Metadata = map[string]string{"a": "\xc3"} }, "metadata"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := valid()
			test.change(&r)
			err := fencing.DefaultBounds().CheckAcquire(&r)
			if (err == nil) != (test.field == "") {
				t.Fatalf("CheckAcquire: %v", err)
			}
			if err != nil {
				refusal(t, err, test.field)
			}
		})
	}
}

func TestCheckRenew(t *testing.T) {
	type request = fencing.RenewRequest
	for _, test := range []struct {
		name   string
		change func(*request)
		field  string // at fault; empty if none is
	}{
		{"nothing", func(*request) {}, ""},
		{"shortest TTL", func(r *request) { r.TTL = 100 * time.Millisecond }, ""},
		{"TTL too short", func(r *request) { r.TTL = 99 * time.Millisecond }, "ttl_ms"},
		{"negative TTL", func(r *request) { r.TTL = -1 }, "ttl_ms"},
		{"TTL too long", func(r *request) { r.TTL = 24*time.Hour + 1 }, "ttl_ms"},
		{"exclusive", func(r *request) { r.Mode = fencing.ModeExclusive }, ""},
		{"shared", func(r *request) { r.Mode = fencing.ModeShared }, ""},
		{"other mode", func(r *request) { r.Mode = "Shared" }, "mode"},
		{"shared with a limit", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, 10_000 }, ""},
		{"limit too large", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, 10_001 }, "limit"},
		{"negative limit", func(r *request) { r.Mode, r.Limit = fencing.ModeShared, -1 }, "limit"},
		{"limit without mode", func(r *request) { r.Limit = 10_000 }, ""},
		{"limit without mode too large", func(r *request) { r.Limit = 10_001 }, "limit"},
		{"limit of an exclusive lease", func(r *request) { r.Mode, r.Limit = fencing.ModeExclusive, 2 }, "limit"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r request
			test.change(&r)
			err := fencing.DefaultBounds().CheckRenew(&r)
			if (err == nil) != (test.field == "") {
				t.Fatalf("CheckRenew: %v", err)
			}
			if err != nil {
				refusal(t, err, test.field)
			}
		})
	}
}

// TestRefusalsNameTheirBounds looks for the numbers a reader needs, not for words.
func TestRefusalsNameTheirBounds(t *testing.T) {
	for _, test := range []struct {
		change func(*fencing.AcquireRequest)
		bounds []string
	}{
		{func(r *fencing.AcquireRequest) { r.TTL = 0 }, []string{"100", "86400000"}},
		{func(r *fencing.AcquireRequest) { r.Wait = time.Hour }, []string{"0", "60000"}},
		{func(r *fencing.AcquireRequest) { r.MaxHold = time.Second }, []string{"30000", "2592000000"}},
		{func(r *fencing.AcquireRequest) { r.Hold = 5000 }, []string{"1", "1000"}},
		{func(r *fencing.AcquireRequest) { r.Mode, r.Limit = fencing.ModeShared, 20_000 }, []string{"1", "10000"}},
		{func(r *fencing.AcquireRequest) { r.Owner = strings.Repeat("x", 300) }, []string{"256"}},
		{func(r *fencing.AcquireRequest) { r.Metadata = entries(20) }, []string{"16"}},
	} {
		r := valid()
		test.change(&r)
		err := fencing.DefaultBounds().CheckAcquire(&r)
		for _, bound := range test.bounds {
			if err == nil || !strings.Contains(err.Error(), bound) {
				t.Errorf("%v does not name the bound %s", err, bound)
			}
		}
	}
}

func TestOwnBounds(t *testing.T) {
	b := fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: 2 * time.Second}
	for ttl, ok := range map[time.Duration]bool{
		time.Second - 1: false, time.Second: true, 2 * time.Second: true, 2*time.Second + 1: false,
	} {
		err := b.CheckTTL(ttl)
		if (err == nil) != ok {
			t.Errorf("CheckTTL(%d): %v", ttl, err)
		}
		if err != nil {
			refusal(t, err, "ttl_ms")
		}
	}
}

func TestValidateBounds(t *testing.T) {
	const day, ms = 24 * time.Hour, time.Millisecond
	for _, test := range []struct {
		name   string
		bounds fencing.Bounds
		ok     bool
	}{
		{"default", fencing.DefaultBounds(), true},
		{"widest", fencing.Bounds{DefaultTTL: day, MinTTL: 100 * time.Millisecond, MaxTTL: day}, true},
		{"one TTL", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: time.Second}, true},
		{"minimum too small", fencing.Bounds{DefaultTTL: day, MinTTL: 99 * ms, MaxTTL: day}, false},
		{"maximum too great", fencing.Bounds{DefaultTTL: day, MinTTL: time.Second, MaxTTL: day + ms}, false},
		{"minimum above maximum", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second + ms, MaxTTL: time.Second}, false},
		{"default below minimum", fencing.Bounds{DefaultTTL: time.Second - ms, MinTTL: time.Second, MaxTTL: day}, false},
		{"default above maximum", fencing.Bounds{DefaultTTL: time.Minute + ms, MinTTL: time.Second, MaxTTL: time.Minute}, false},
		{"negative wait", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: day, MaxWait: -ms}, false},
		{"default of a fraction", fencing.Bounds{DefaultTTL: time.Second + 1, MinTTL: time.Second, MaxTTL: day}, false},
		{"minimum of a fraction", fencing.Bounds{DefaultTTL: time.Minute, MinTTL: time.Second + time.Microsecond, MaxTTL: day}, false},
		{"maximum of a fraction", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: day - 1}, false},
		{"wait of a fraction", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: day, MaxWait: 1}, false},
		{"negative number of waiters", fencing.Bounds{DefaultTTL: time.Second, MinTTL: time.Second, MaxTTL: day, MaxWaiters: -1}, false},
		{"nothing", fencing.Bounds{}, false},
	} {
		if err := test.bounds.Validate(); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}
