package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"

	"fencepost/fence"
)

// Two holders of one lock, one after the other. The first was stopped and goes on.
func ExampleDir() {
	name, err := os.MkdirTemp("", "fence")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(name)
	dir, err := fence.OpenDir(name)
	if err != nil {
		log.Fatal(err)
	}
	defer dir.Close()

	ctx := context.Background()
	const first, second = 1795184727477314, 1795184727533107 // as the gateway answered
	fmt.Println(dir.WriteFile(ctx, "report.txt", second, fence.NoSlot, []byte("by the second")))

	err = dir.WriteFile(ctx, "report.txt", first, fence.NoSlot, []byte("by the first"))
	if stale, ok := errors.AsType[*fence.StaleError](err); ok {
		fmt.Println("stop working:", stale)
	}
	content, _ := dir.ReadFile("report.txt")
	fmt.Printf("%s\n", content)
	// Output:
	// <nil>
	// stop working: stale fencing token: 1795184727477314 is below 1795184727533107, which was admitted before
	// by the second
}

// A store of documents in memory: PUT needs a Fencing-Token, GET does not.
func ExampleHandler() {
	var documents documents // with a lock of its own, for readers
	http.Handle("/documents/", fence.Handler(new(fence.Memory), nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			_, _ = io.WriteString(w, documents.get(r.URL.Path))
			return
		}
		content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		documents.put(r.URL.Path, string(content)) // nobody with an older token comes after this
	})))
}

type documents struct {
	mu    sync.RWMutex
	texts map[string]string
}

func (d *documents) get(path string) string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.texts[path]
}

func (d *documents) put(path, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.texts == nil {
		d.texts = map[string]string{}
	}
	d.texts[path] = text
}
