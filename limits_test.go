package fencepost_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/fence"
	"fencepost/internal/fencing"
)

// limits are the constants of docs/reference.md.
var limits = map[string]any{
	"TombstoneTTL": fencing.TombstoneTTL, "ForgetAfter": fencing.ForgetAfter, "RestTTL": fencing.RestTTL,
	"HeartbeatInterval": fencing.HeartbeatInterval, "GatewayTTL": fencing.GatewayTTL, "StallAfter": fencing.StallAfter,
	"HearInterval": fencing.HearInterval, "LongestQuarantine": fencing.LongestQuarantine, "TTLPeriod": fencing.TTLPeriod,
	"MaxFloorLead": fencing.MaxFloorLead, "StepLimit": fencing.StepLimit, "MaxBroken": fencing.MaxBroken, "MaxHistory": fencing.MaxHistory,
	"MaxNameBytes": fencing.MaxNameBytes, "MaxOwnerBytes": fencing.MaxOwnerBytes, "MaxBreakReasonBytes": fencing.MaxBreakReasonBytes, "MaxMetadataEntries": fencing.MaxMetadataEntries,
	"MaxMetadataKeyBytes": fencing.MaxMetadataKeyBytes, "MaxMetadataValueBytes": fencing.MaxMetadataValueBytes,
	"MaxLimit": fencing.MaxLimit, "MaxSlotsShown": fencing.MaxSlotsShown, "MaxHoldDepth": fencing.MaxHoldDepth, "MaxMaxHold": fencing.MaxMaxHold, "MaxLockDelay": fencing.MaxLockDelay,
	"MaxListLimit": fencing.MaxListLimit, "DefaultListLimit": fencing.DefaultListLimit, "MaxHoldersShown": fencing.MaxHoldersShown,
	"MaxHoldersListed": fencing.MaxHoldersListed, "MaxWaitersShown": fencing.MaxWaitersShown, "MaxNames": fencing.MaxNames, "MinNodes": fencing.MinNodes, "MaxNodes": fencing.MaxNodes,
	"ShortestNotice": fencing.ShortestNotice, "LongestNotice": fencing.LongestNotice,
	"ShortestTTL": fencing.ShortestTTL, "LongestTTL": fencing.LongestTTL, "LongestAttachedWait": fencing.LongestAttachedWait,
}

// noLimits are constants of the same files that are nobody's business but the code's.
var noLimits = map[string]bool{"AtOnce": true, "MaxToken": true, "NameBytes": true}

func TestLimitsPage(t *testing.T) {
	page := map[string]string{}
	_, constants, found := strings.Cut(read(t, "docs/reference.md"), "\n| constant | value | meaning |\n")
	constants, _, ended := strings.Cut(constants, "\n\n")
	if !found || !ended {
		t.Fatal("docs/reference.md has no table of constants")
	}
	for _, match := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| ([^|]+) \\| [^| ][^|]* \\|$").FindAllStringSubmatch(constants, -1) {
		names, values := strings.Split(match[1], ", "), strings.Split(match[2], ", ")
		if len(names) != len(values) {
			t.Errorf("docs/reference.md has %d values for %s", len(values), match[1])
			continue
		}
		for i, name := range names {
			page[strings.Trim(name, "`")] = values[i]
		}
	}
	for name, value := range limits {
		if page[name] != written(value) {
			t.Errorf("docs/reference.md says that %s is %q, and it is %q", name, page[name], written(value))
		}
	}
	for name := range page {
		if _, known := limits[name]; !known {
			t.Errorf("docs/reference.md has %s, and this test has not", name)
		}
	}
	for _, path := range []string{"bounds.go", "state.go", "gateway.go", "quarantine.go", "token.go", "name.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), "internal/fencing/"+path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if _, known := limits[name.Name]; name.IsExported() && !known && !noLimits[name.Name] {
						t.Errorf("docs/reference.md does not have %s of internal/fencing/%s", name.Name, path)
					}
				}
			}
		}
	}
}

// TestLimitsOfGuards: storage admits what the gateway issues, and no more.
func TestLimitsOfGuards(t *testing.T) {
	if fence.MaxToken != fencing.MaxToken || fence.MaxSlot != fencing.MaxLimit-1 || fence.MaxResourceBytes != fencing.MaxNameBytes {
		t.Errorf("tokens to %d, slots to %d, names to %d bytes", int64(fence.MaxToken), fence.MaxSlot, fence.MaxResourceBytes)
	}
}

// TestNumbersInDocuments: what documents say in passing is what the constants are.
func TestNumbersInDocuments(t *testing.T) {
	for _, of := range []struct {
		path, phrase string
		values       []any
	}{
		{"README.md", "up to %s if the gateway of the next waiter died", []any{2 * fencing.GatewayTTL}},
		{"README.md", "within %s if it was handed to a waiter whose gateway died", []any{2 * fencing.GatewayTTL}},
		{"docs/locks.md", "repeat the same POST within %s", []any{fencing.RestTTL}},
		{"docs/locks.md", "the same place, for %s", []any{fencing.RestTTL}},
		{"docs/locks.md", "Here `wait_ms` may be up to %s", []any{fencing.LongestAttachedWait}},
		{"docs/operations.md", "keeps its place for %s", []any{fencing.RestTTL}},
		{"docs/operations.md", "is kept for %s after its last lease", []any{fencing.ForgetAfter}},
		{"docs/locks.md", "A name has 1 to %s bytes", []any{fencing.MaxNameBytes}},
		{"docs/locks.md", "one that has ended gets 412 for at least %s", []any{fencing.TombstoneTTL}},
		{"api/openapi.yaml", "A lease id that has ended is answered 412 for at least %s", []any{fencing.TombstoneTTL}},
		{"docs/locks.md", "`lock_delay_ms` (up to %s)", []any{fencing.MaxLockDelay}},
		{"docs/locks.md", "You get all names (1 to %s)", []any{fencing.MaxNames}},
		{"docs/locks.md", "has the last %s leases of a name, for a day", []any{fencing.MaxHistory}},
		{"docs/locks.md", "`notice_ms` (%s to %s)", []any{fencing.ShortestNotice, fencing.LongestNotice}},
		{"docs/stores.md", "waits for the longest TTL in use, at most %s", []any{fencing.LongestQuarantine}},
		{"docs/stores.md", "a lost lease with a TTL of more than %s under `auto`", []any{fencing.LongestQuarantine}},
		{"docs/failures.md", "at least `FENCEPOST_DEFAULT_TTL`, at most %s", []any{fencing.LongestQuarantine}},
		{"docs/stores/quorum.md", "%s, 5 or %s Redis that know nothing of each other", []any{fencing.MinNodes, fencing.MaxNodes}},
		{"docs/stores.md", "%s, 5 or %s Redis | the loss of", []any{fencing.MinNodes, fencing.MaxNodes}},
		{"docs/failures.md", "within the last %s to %s", []any{fencing.TTLPeriod, 2 * fencing.TTLPeriod}},
		{"docs/stores.md", "Skipped within %s, or within %s if the store heard from no gateway for %s meanwhile", []any{
			fencing.GatewayTTL + fencing.HeartbeatInterval, 2 * fencing.GatewayTTL, fencing.StallAfter}},
		{"docs/stores.md", "keep their place for %s more", []any{fencing.RestTTL}},
		{"docs/stores.md", "until it has served for %s", []any{fencing.GatewayTTL}},
		{"docs/stores/redis.md", "is more than %s behind a gateway's highest token", []any{fencing.MaxFloorLead}},
		{"docs/architecture.md", "`fencing.StepLimit` (%s)", []any{fencing.StepLimit}},
		{"docs/architecture.md", "was silent for %s (`GatewayTTL`)", []any{fencing.GatewayTTL}},
		{"docs/performance.md", "for %s or until its former expiry, whichever is later", []any{fencing.TombstoneTTL}},
		{"docs/performance.md", "250 × r × %s s + 195 × u × %s s", []any{int(fencing.TombstoneTTL.Seconds()), int(fencing.ForgetAfter.Seconds())}},
		{"docs/performance.md", "10,000 pairs a second keep %s GB of tombstones", []any{gigabytes(250 * 10_000 * fencing.TombstoneTTL.Seconds())}},
		{"docs/performance.md", "1,000 new names a second (order numbers, for example) keep %s GB of idle names", []any{gigabytes(195 * 1000 * fencing.ForgetAfter.Seconds())}},
		{"docs/performance.md", "longer TTLs. Above %s set [`FENCEPOST_QUARANTINE`]", []any{fencing.LongestQuarantine}},
		{"verify/soak/series.go", "the first %s of a soak", []any{fencing.TombstoneTTL}},
		{"docs/reference.md", "your place is kept for %s", []any{fencing.RestTTL}},
		{"CHANGELOG.md", "is done in steps of %s", []any{fencing.StepLimit}},
		{"CHANGELOG.md", "shows at most %s holders, those that expire first, and %s waiters (a list: %s holders)", []any{
			fencing.MaxHoldersShown, fencing.MaxWaitersShown, fencing.MaxHoldersListed}},
		{"api/openapi.yaml", "its own its place is kept for %s", []any{fencing.RestTTL}},
		{"api/openapi.yaml", "the places in the queues are kept for %s", []any{fencing.RestTTL}},
		{"api/openapi.yaml", "`wait_ms` may be up to %s here", []any{fencing.LongestAttachedWait}},
		{"api/openapi.yaml", "1 to %s bytes of `A-Z a-z", []any{fencing.MaxNameBytes}},
		{"api/openapi.yaml", "at most %s bytes of UTF-8", []any{fencing.MaxOwnerBytes}},
		{"api/openapi.yaml", "At most %s entries; keys of 1 to %s bytes, values of at most %s", []any{
			fencing.MaxMetadataEntries, fencing.MaxMetadataKeyBytes, fencing.MaxMetadataValueBytes}},
	} {
		texts := make([]any, len(of.values))
		for i, value := range of.values {
			texts[i] = written(value)
		}
		phrase := fmt.Sprintf(of.phrase, texts...)
		if text := strings.Join(strings.Fields(read(t, of.path)), " "); !strings.Contains(text, phrase) {
			t.Errorf("%s does not say %q", of.path, phrase)
		}
	}
}

// gigabytes are bytes that a page tells as so many GB.
type gigabytes float64

// The part of a soak's samples that does not count is as long as tombstones are kept: verify may
// not import the constant.
func TestWarmUpOfASoak(t *testing.T) {
	found := func(path, form string) float64 {
		match := regexp.MustCompile(form).FindStringSubmatch(read(t, path))
		if match == nil {
			t.Fatalf("%s has no %s", path, form)
		}
		n, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	part := found("verify/soak/series.go", `warmUp = ([0-9.]+)`)
	minutes := found("verify/checks.go", `soaking = check\.Pick\(scale, [^,]+, ([0-9]+)\*time\.Minute\)`)
	if warm := time.Duration(part * minutes * float64(time.Minute)); warm < fencing.TombstoneTTL {
		t.Errorf("the first %s of a soak don't count, and tombstones are kept for %s", warm, fencing.TombstoneTTL)
	}
}

// written returns a value as documents have it.
func written(value any) string {
	switch v := value.(type) {
	case time.Duration:
		const day = 24 * time.Hour
		switch {
		case v > day && v%day == 0:
			return fmt.Sprintf("%d days", v/day)
		case v%time.Hour == 0:
			return fmt.Sprintf("%d h", v/time.Hour)
		case v%time.Minute == 0:
			return fmt.Sprintf("%d min", v/time.Minute)
		case v < time.Second/2:
			return fmt.Sprintf("%d ms", v.Milliseconds())
		}
		return strconv.FormatFloat(v.Seconds(), 'f', -1, 64) + " s"
	case gigabytes:
		if v < 1e10 {
			return strconv.FormatFloat(float64(v)/1e9, 'f', 1, 64)
		}
		return strconv.FormatFloat(float64(v)/1e9, 'f', 0, 64)
	case int:
		if v >= 1000 {
			return fmt.Sprintf("%d,%03d", v/1000, v%1000)
		}
		return strconv.Itoa(v)
	}
	panic(fmt.Sprintf("%T", value))
}
