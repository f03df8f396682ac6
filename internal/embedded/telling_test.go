package embedded

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// A start that takes long says how far it is, every so often.
func TestALongStartIsTold(t *testing.T) {
	var log strings.Builder
	p := progress{log: slog.New(slog.NewTextHandler(&log, nil))} // it has taken long already
	for at := range uint64(1000) {
		p.tell(at+1, 1000)
	}
	if said := log.String(); strings.Count(said, "entry=") != 1 || !strings.Contains(said, "entry=256 of=1000") {
		t.Errorf("it says %q", said)
	}
	p.next = time.Now()
	p.tell(512, 1000)
	if !strings.Contains(log.String(), "entry=512 of=1000") {
		t.Errorf("later it says %q", log.String())
	}
}
