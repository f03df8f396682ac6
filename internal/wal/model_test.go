package wal

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// model is what a log is to come to, in memory.
type model struct {
	first   uint64
	entries []raft.Log // from first on
	values  map[string]string
}

func (m *model) last() uint64 {
	if len(m.entries) == 0 {
		return 0
	}
	return m.first + uint64(len(m.entries)) - 1
}

// step does something to a log that a model has as well, and returns what is to be done to the model once it is done.
func (m *model) step(l *Log, random *rand.Rand) (do func() error, then func()) {
	switch choice := random.IntN(20); {
	case choice < 12 || len(m.entries) == 0 && choice < 18:
		next := m.last() + 1
		if len(m.entries) == 0 {
			next = 1 + random.Uint64N(1000)
		}
		added := make([]raft.Log, 1+random.IntN(4))
		all := make([]*raft.Log, len(added))
		for i := range added {
			size := random.IntN(300)
			if random.IntN(20) == 0 {
				size = random.IntN(3 * testFile)
			}
			added[i] = raft.Log{Index: next + uint64(i), Term: random.Uint64(), Type: raft.LogType(random.IntN(6)), Data: randomBytes(random, size)}
			if random.IntN(5) == 0 {
				added[i].Extensions = randomBytes(random, 10)
			}
			all[i] = &added[i]
		}
		return func() error { return l.StoreLogs(all) }, func() {
			if len(m.entries) == 0 {
				m.first = next
			}
			m.entries = append(m.entries, added...)
		}
	case choice < 14:
		at := m.first + random.Uint64N(uint64(len(m.entries)))
		last := m.last()
		return func() error { return l.DeleteRange(at, last) }, func() { m.entries = m.entries[:at-m.first] }
	case choice < 17:
		to := m.first + random.Uint64N(uint64(len(m.entries)))
		least := m.first - min(m.first, random.Uint64N(2))
		return func() error { return l.DeleteRange(least, to) }, func() {
			m.entries = m.entries[to+1-m.first:]
			m.first = to + 1
		}
	case choice < 18:
		first, last := m.first, m.last()
		return func() error { return l.DeleteRange(first, last) }, func() { m.entries = nil }
	case choice < 19:
		key, value := fmt.Sprint("key ", random.IntN(3)), string(randomBytes(random, random.IntN(30)))
		return func() error { return l.Set([]byte(key), []byte(value)) }, func() { m.values[key] = value }
	default:
		value := random.Uint64()
		return func() error { return l.SetUint64([]byte("number"), value) }, func() { m.values["number"] = fmt.Sprint(value) }
	}
}

func randomBytes(random *rand.Rand, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// String has all of a model; what a log has is described in the same way by described.
func (m *model) String() string {
	var b strings.Builder
	first := m.first
	if len(m.entries) == 0 {
		first = 0
	}
	fmt.Fprintln(&b, first, m.last())
	for _, e := range m.entries {
		fmt.Fprintf(&b, "%d %d %d %d %x %x\n", e.Index, e.Term, e.Type, len(e.Data), crc32.ChecksumIEEE(e.Data), e.Extensions)
	}
	for i := range 3 {
		key := fmt.Sprint("key ", i)
		if value, ok := m.values[key]; ok {
			fmt.Fprintf(&b, "%s %x\n", key, value)
		}
	}
	if value, ok := m.values["number"]; ok {
		fmt.Fprintln(&b, value)
	}
	return b.String()
}

func (m *model) clone() *model {
	c := &model{m.first, append([]raft.Log{}, m.entries...), map[string]string{}}
	for key, value := range m.values {
		c.values[key] = value
	}
	return c
}

// described returns what a log has, as model.String.
func described(l *Log) (string, error) {
	var b strings.Builder
	first, err := l.FirstIndex()
	last, errLast := l.LastIndex()
	if err = errors.Join(err, errLast); err != nil {
		return "", err
	}
	fmt.Fprintln(&b, first, last)
	for at := first; at <= last && last > 0; at++ {
		var e raft.Log
		if err := l.GetLog(at, &e); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%d %d %d %d %x %x\n", e.Index, e.Term, e.Type, len(e.Data), crc32.ChecksumIEEE(e.Data), e.Extensions)
	}
	for _, at := range []uint64{0, max(first, 1) - 1, last + 1, last + 1000} {
		if err := l.GetLog(at, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
			return "", fmt.Errorf("entry %d of %d to %d: %w", at, first, last, err)
		}
	}
	for i := range 3 {
		key := fmt.Sprint("key ", i)
		switch value, err := l.Get([]byte(key)); {
		case err == nil:
			fmt.Fprintf(&b, "%s %x\n", key, value)
		case err.Error() != "not found":
			return "", err
		}
	}
	switch value, err := l.GetUint64([]byte("number")); {
	case err == nil:
		fmt.Fprintln(&b, value)
	case err.Error() != "not found":
		return "", err
	}
	return b.String(), nil
}

// opened opens the log in files, and returns what it has. What panics is an error.
func opened(dir string, files *waltest.Trace) (l *Log, is string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if l, err = Open(dir, Options{Files: files, FileSize: testFile}); err != nil {
		return nil, "", err
	}
	is, err = described(l)
	return l, is, err
}

const testFile = 6 * block

// A log is what the same calls make of a map in memory, also after it is opened again.
func TestModel(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	for range 10 {
		dir := t.TempDir()
		l, err := Open(dir, Options{FileSize: testFile})
		if err != nil {
			t.Fatal(err)
		}
		m := &model{values: map[string]string{}}
		for i := range 300 {
			do, then := m.step(l, random)
			if err := do(); err != nil {
				t.Fatal(i, err)
			}
			then()
			if i%30 == 29 || random.IntN(20) == 0 {
				if err := l.next(); err != nil {
					t.Fatal(err)
				}
				bytes := l.Bytes()
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				if l, err = Open(dir, Options{FileSize: testFile}); err != nil {
					t.Fatal(i, err)
				}
				if err := l.next(); err != nil {
					t.Fatal(err)
				}
				if l.Bytes() != bytes {
					t.Errorf("the files have %d bytes; they had %d", l.Bytes(), bytes)
				}
			}
			if i%10 == 0 {
				if is, err := described(l); err != nil || is != m.String() {
					t.Fatalf("step %d: %v, it is\n%.1000s\nand not\n%.1000s", i, err, is, m)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
