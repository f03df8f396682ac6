package http

import (
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"fencepost/internal/fencing"
)

// TestContractHasTheBounds: what the contract says of ranges is what package fencing has.
func TestContractHasTheBounds(t *testing.T) {
	schemas := contract().Components.Schemas
	defaults := fencing.DefaultBounds()
	ms := func(d time.Duration) float64 { return float64(d.Milliseconds()) }
	span := func(schema, property string, least, most float64) {
		t.Helper()
		s := schemas[schema].Value
		if property != "" {
			s = s.Properties[property].Value
		}
		if s.Min == nil || s.Max == nil || *s.Min != least || *s.Max != most {
			t.Errorf("%s %s has another range than %v to %v", schema, property, least, most)
		}
	}
	items := func(s *openapi3.Schema, what string, most int) {
		t.Helper()
		if s.MaxItems == nil || *s.MaxItems != uint64(most) {
			t.Errorf("%s may have another number of items than %d", what, most)
		}
	}
	length := func(s *openapi3.Schema, what string, most int) {
		t.Helper()
		if s.MaxLength == nil || *s.MaxLength != uint64(most) {
			t.Errorf("%s may have another length than %d", what, most)
		}
	}
	for _, schema := range []string{"AcquireRequest", "AcquireSetRequest", "RenewRequest", "RenewSetRequest"} {
		span(schema, "ttl_ms", ms(fencing.ShortestTTL), ms(fencing.LongestTTL))
		span(schema, "limit", 1, fencing.MaxLimit)
		span(schema, "permits", 1, fencing.MaxLimit)
	}
	for _, schema := range []string{"AcquireRequest", "AcquireSetRequest"} {
		span(schema, "hold", 1, fencing.MaxHoldDepth)
		span(schema, "max_hold_ms", 0, ms(fencing.MaxMaxHold))
		span(schema, "lock_delay_ms", 0, ms(fencing.MaxLockDelay))
		if got := schemas[schema].Value.Properties["ttl_ms"].Value.Default; got != ms(defaults.DefaultTTL) {
			t.Errorf("%s ttl_ms has the default %v", schema, got)
		}
	}
	span("AcquireRequest", "wait_ms", 0, ms(fencing.LongestAttachedWait))
	span("AcquireSetRequest", "wait_ms", 0, ms(fencing.LongestAttachedWait))
	span("Token", "", 1, float64(fencing.MaxToken))
	span("Limit", "", 1, fencing.MaxLimit)
	span("LockDelay", "", 1, ms(fencing.MaxLockDelay))
	span("Slot", "", 0, fencing.MaxLimit-1)
	span("Permits", "", 2, fencing.MaxLimit)
	items(schemas["Slots"].Value, "Slots", fencing.MaxLimit)
	items(schemas["Names"].Value, "Names", fencing.MaxNames)
	items(schemas["Lock"].Value.Properties["holders"].Value, "Lock holders", fencing.MaxHoldersShown)
	items(schemas["ListedLock"].Value.Properties["holders"].Value, "ListedLock holders", fencing.MaxHoldersListed)
	items(schemas["LockList"].Value.Properties["locks"].Value, "LockList locks", fencing.MaxListLimit)
	length(schemas["Name"].Value, "Name", fencing.MaxNameBytes)
	length(schemas["Owner"].Value, "Owner", fencing.MaxOwnerBytes)
	metadata := schemas["Metadata"].Value
	if metadata.MaxProps == nil || *metadata.MaxProps != fencing.MaxMetadataEntries {
		t.Errorf("Metadata may have another number of entries than %d", fencing.MaxMetadataEntries)
	}
	length(metadata.AdditionalProperties.Schema.Value, "a value of Metadata", fencing.MaxMetadataValueBytes)
	for _, parameter := range contract().Paths.Find("/locks").Get.Parameters {
		if p := parameter.Value; p.Name == "limit" {
			if s := p.Schema.Value; *s.Max != fencing.MaxListLimit || s.Default != float64(fencing.DefaultListLimit) {
				t.Errorf("limit of a list is at most %v, by default %v", *s.Max, s.Default)
			}
		}
	}
}
