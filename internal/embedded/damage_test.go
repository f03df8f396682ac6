//go:build !race

// One goroutine reads hundreds of damaged files: as images_test.go.

package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/seed"
	"fencepost/internal/wal"
	"fencepost/internal/wal/waltest"
)

// damage is something that becomes of a file.
type damage struct {
	title string
	do    func(content []byte, at int, random *rand.Rand) []byte
}

// swapped may hit the last two flushes at once.
const swapped = "two pages swapped"

var damages = []damage{
	{"a bit flipped", func(b []byte, at int, random *rand.Rand) []byte {
		b[at] ^= 1 << random.IntN(8)
		return b
	}},
	{"a sector zeroed", func(b []byte, at int, _ *rand.Rand) []byte {
		at = at / waltest.Sector * waltest.Sector
		clear(b[at:min(at+waltest.Sector, len(b))])
		return b
	}},
	{"a page of noise", func(b []byte, at int, random *rand.Rand) []byte {
		for i := at / block * block; i < min(at/block*block+block, len(b)); i++ {
			b[i] = byte(random.Uint32())
		}
		return b
	}},
	{"cut off", func(b []byte, at int, _ *rand.Rand) []byte { return b[:at] }},
	{swapped, func(b []byte, at int, random *rand.Rand) []byte {
		pages := len(b) / block
		if pages < 2 {
			return b[:at]
		}
		one, other := min(at/block, pages-1)*block, random.IntN(pages)*block
		for i := range block {
			b[one+i], b[other+i] = b[other+i], b[one+i]
		}
		return b
	}},
	{"something appended", func(b []byte, at int, _ *rand.Rand) []byte { return append(b, b[:1+at]...) }},
	{"a part missing", func(b []byte, at int, random *rand.Rand) []byte {
		return append(b[:at:at], b[min(len(b), at+1+random.IntN(block)):]...)
	}},
}

// lastFrame returns where the last frame of a file of the log begins and ends; 0 and 0 if it has none.
func lastFrame(content []byte) (begins, ends int) {
	for at := block; at < len(content) && binary.BigEndian.Uint64(content[at+8:]) != 0; at = ends {
		begins, ends = at, at+(16+int(binary.BigEndian.Uint32(content[at:]))+block-1)/block*block
	}
	return begins, ends
}

// Whatever is damaged in a file, the store is refused with the name of the file and nothing is changed, or it has
// the right state. Of the last flush before a crash, or the last two if both of them are
// damaged, no one can tell whether they were ever done. FENCEPOST_LONG makes it 2,000 places.
func TestEveryDamageIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	places, violations, refused := times(300, 2000), 0, 0
	dir, files := t.TempDir(), waltest.New(nil)
	h, s, clock := exercised(t, dir, files, random, 600)
	waitFor(t, "the snapshot", func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return s.saving == nil
	})
	var crashed map[string][]byte
	waitFor(t, "the next file of the log, if one is being made", func() bool {
		crashed = files.Content()
		return !slices.ContainsFunc(slices.Collect(maps.Keys(crashed)), func(path string) bool { return strings.HasSuffix(path, ".new") })
	})
	if s.Close() != nil {
		t.Fatal("it does not end")
	}
	ended := files.Content()
	right, last := h.moments[len(h.moments)-1].state, h.moments[len(h.moments)-1].answered
	checked := t.TempDir()
	for place := range places {
		whole := crashed
		if place%3 == 2 {
			whole = ended
		}
		paths := slices.DeleteFunc(slices.Sorted(maps.Keys(whole)), func(path string) bool {
			return (filepath.Base(filepath.Dir(path)) == disk.LogName) != (place%2 == 0)
		})
		path := paths[random.IntN(len(paths))]
		before := whole[path]
		begins, ends := 0, 0
		if place%2 == 0 {
			begins, ends = lastFrame(before)
		}
		at := random.IntN(len(before))
		if ends > 0 && random.IntN(3) > 0 { // where something stands
			at = random.IntN(ends)
		}
		d := damages[place/6%len(damages)]
		name := path[len(dir)+1:]
		after := d.do(bytes.Clone(before), at, random)
		image := waltest.Moved(whole, dir, checked)
		image[filepath.Join(checked, name)] = after
		damaged := waltest.New(image)
		state, err := stateOn(checked, damaged, clock.read)
		if is := damaged.Content(); err != nil && !maps.EqualFunc(is, image, bytes.Equal) {
			t.Errorf("%s, %s at byte %d: it was refused, and files were changed: there is %v", name, d.title, at, slices.Sorted(maps.Keys(is)))
		}
		_, lookErr := lookOn(checked, waltest.New(image))
		inLast := ends > 0 && (len(after) != len(before) || !bytes.Equal(after[begins:ends], before[begins:ends]))
		switch {
		case (err == nil) != (lookErr == nil):
			err = fmt.Errorf("the store says %v, a look %v", err, lookErr)
		case err == nil && state == right:
			continue
		case err == nil && inLast && h.check(state, last-1) == nil:
			continue
		case err == nil && inLast && d.title == swapped && h.check(state, last-2) == nil:
			continue
		case err == nil:
			err = errors.New("a wrong state was read")
		case strings.Contains(err.Error(), filepath.Base(name)) && strings.Contains(err.Error(), remedy),
			inLast && errors.Is(err, wal.ErrDamaged): // it may have been a cut, behind which files went
			refused++
			continue
		}
		violations++
		t.Errorf("%s, %s at byte %d of %d: %v", name, d.title, at, len(before), err)
	}
	if refused < places/4 {
		t.Errorf("only %d of %d were refused", refused, places)
	}
	fmt.Printf("verified: damaged places %d, refused %d, violations %d\n", places, refused, violations)
}

// lookOn is the doctor's look at files. What panics is an error.
func lookOn(dir string, files wal.Files) (detail string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	detail, err = (&directory{dir: dir, logger: slog.New(slog.DiscardHandler), free: datadir.Free}).look(files)
	return detail, err
}
