package machine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// Labels are the bytes that a map with the same entries is, in snapshots and between nodes, and come back from them.
func TestLabelsAreEncodedAsAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		entries := map[string]string{}
		for range random.IntN(30) {
			key := strings.Repeat("ü", random.IntN(3)) + strings.Repeat("k", random.IntN(40)) + fmt.Sprint(random.IntN(30))
			entries[key] = strings.Repeat("v", []int{0, 5, 23, 24, 255, 256, 1 << 16}[random.IntN(7)])
		}
		labels := fencing.LabelsOf(entries)
		if len(entries) > 0 && string(labels) != string(must(Encoding.Marshal(entries))) {
			t.Fatalf("%v are %x", entries, labels)
		}
		if is := labels.Map(); !maps.Equal(is, entries) || labels.Len() != len(entries) {
			t.Fatalf("%v have become %v", entries, is)
		}
		var again fencing.Labels
		if err := Strict.Unmarshal(must(Encoding.Marshal(labels)), &again); err != nil || again != labels {
			t.Fatalf("%x have become %x: %v", labels, again, err)
		}
	}
	if string(must(Encoding.Marshal(fencing.Holder{}))) != strings.Replace(string(must(Encoding.Marshal(fencing.Holder{Metadata: fencing.LabelsOf(map[string]string{"a": "b"})}))), "\xa1\x61a\x61b", "\xf6", 1) {
		t.Error("no labels are not what no map is")
	}
}

// What is no map of texts, or has its keys in no order, is refused.
func TestLabelsThatAreNone(t *testing.T) {
	for _, encoded := range []string{
		"\xa1\x61a\x01", "\xa1\x01\x61a", "\xa2\x61b\x61x\x61a\x61x", "\xa2\x61a\x61x\x61a\x61x", "\x61a", "\xa1\x61\xff\x61a", "\xa1\x61a\x61\xff", "\x80", "\xbf\x61a\x61b\xff", "\xa1\x61a\x5b",
		"", "\xa1", "\xa1\x61a", "\xa1\x61a\x62b", "\xa0\x00",
	} {
		labels := fencing.Labels("before")
		if err := labels.UnmarshalCBOR([]byte(encoded)); err == nil {
			t.Errorf("%x is %q", encoded, labels)
		}
	}
	labels := fencing.Labels("before")
	if err := Strict.Unmarshal([]byte("\xa0"), &labels); err != nil || labels != "" {
		t.Errorf("an empty map is %q: %v", labels, err)
	}
}
