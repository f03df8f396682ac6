package redis

import (
	"testing"

	"fencepost/internal/redis/redistest"
)

// "Data there that has another layout" is an error of Open: that of the version
// before is marked by a key that nobody looks at any more.
func TestOldLayout(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	client.HSet(t.Context(), "fencepost:{meta}", "format", "2", "partitions", "256")
	s, err := Open(t.Context(), Options{URL: server.URL(), Logger: quiet})
	if err == nil {
		t.Error("data of format 2 is taken for a new store")
		s.Close()
	}
}
