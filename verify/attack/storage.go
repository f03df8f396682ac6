package attack

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
)

// storage is a small store of documents, in memory, that admits writes by their token.
// A document is a number of chunks, which are written one by one.
type storage struct {
	unfenced bool // admits whatever comes, to see what the check is good for

	mu        sync.Mutex
	documents map[string]*document
}

type document struct {
	Highest int64   `json:"highest"` // token that was admitted
	Chunks  []int64 `json:"chunks"`  // the token that wrote each

	Accepted  int `json:"accepted"`  // writes
	Refused   int `json:"refused"`   // writes below Highest
	StaleTook int `json:"staleTook"` // writes below Highest that were accepted all the same
}

// write answers PUT /{document}?token=T&chunk=I: 204, or 412 for a token below the
// highest that was seen. An equal one is the same holder's next chunk.
func (s *storage) write(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.FormValue("token"), 10, 64)
	chunk, chunkErr := strconv.Atoi(r.FormValue("chunk"))
	if err != nil || chunkErr != nil || chunk < 0 || chunk >= chunks {
		http.Error(w, "token and chunk must be whole numbers", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.documents[r.PathValue("document")]
	if d == nil {
		d = &document{Chunks: make([]int64, chunks)}
		s.documents[r.PathValue("document")] = d
	}
	if token < d.Highest {
		if !s.unfenced {
			d.Refused++
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		d.StaleTook++
	}
	d.Highest = max(d.Highest, token)
	d.Accepted++
	d.Chunks[chunk] = token
	w.WriteHeader(http.StatusNoContent)
}

// look answers GET / with all documents.
func (s *storage) look(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(s.documents)
}

// serve serves until the process ends, and says where on standard output.
func serve(unfenced bool) error {
	s := &storage{unfenced: unfenced, documents: map[string]*document{}}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{document}", s.write)
	mux.HandleFunc("GET /{$}", s.look)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "http://"+listener.Addr().String())
	return http.Serve(listener, mux)
}
