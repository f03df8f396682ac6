//go:build !race

// One goroutine reads hundreds of damaged files: as images_test.go.

package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"fencepost/internal/seed"
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
		at = at / sector * sector
		clear(b[at:min(at+sector, len(b))])
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

// Whatever is damaged in a file, the store is refused with the name of the file, or has
// the right state. Of the last flush before a crash, or the last few if all of them are
// damaged, no one can tell whether they were ever done. FENCEPOST_LONG makes it 2,000 places.
func TestEveryDamageIsNamed(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	places, violations, refused := times(300, 2000), 0, 0
	dir, files := t.TempDir(), newTrace(nil)
	h, s, clock := exercised(t, dir, files, random, 600)
	crashed := files.content()
	j := s.disk.journal
	last, lastEnd, lastIn := j.at-int64(len(j.frame)), j.at, segmentNames[j.current]
	right := h.moments[len(h.moments)-1].state
	if j.segments[0].size == smallSegment {
		t.Error("the journal has not grown: the test misses its aim")
	}
	s.Close()
	ended := files.content()
	checked := t.TempDir()
	for place := range places {
		whole, name := crashed, fileName
		switch place % 3 {
		case 1:
			name = segmentNames[random.IntN(2)]
		case 2:
			whole = ended
		}
		d := damages[place/3%len(damages)]
		path := filepath.Join(dir, name)
		before := whole[path]
		at := random.IntN(len(before))
		if name == lastIn && random.IntN(2) == 0 { // where something stands
			at = int(last) - random.IntN(int(last))%(20*block)
			at = max(0, at)
		}
		image := atDirectory(whole, dir, checked)
		after := d.do(bytes.Clone(before), at, random)
		image[filepath.Join(checked, name)] = after
		state, err := stateOn(checked, newTrace(image), clock.read)
		_, lookErr := lookOn(checked, newTrace(image))
		inLast := name == lastIn && (len(after) != len(before) || !bytes.Equal(after[last:lastEnd], before[last:lastEnd]))
		switch {
		case (err == nil) != (lookErr == nil):
			err = fmt.Errorf("the store says %v, a look %v", err, lookErr)
		case err == nil && state == right:
			continue
		case err == nil && inLast && h.check(state, h.moments[len(h.moments)-1].answered-1) == nil:
			continue
		case err == nil && inLast && d.title == swapped && h.check(state, h.moments[len(h.moments)-1].answered-2) == nil:
			continue
		case err == nil:
			err = errors.New("a wrong state was read")
		case (errors.Is(err, errDamaged) || errors.Is(err, errJournal) || strings.Contains(err.Error(), "format")) && strings.Contains(err.Error(), name):
			refused++
			continue
		}
		violations++
		t.Errorf("%s, %s at byte %d of %d: %v", name, d.title, at, len(before), err)
	}
	if refused < places/3 {
		t.Errorf("only %d of %d were refused", refused, places)
	}
	fmt.Printf("verified: damaged places %d, refused %d, violations %d\n", places, refused, violations)
}

// The last flush may have been written in part, whichever part that is: what
// stood there before is left in the other places.
func TestATornTailIsDropped(t *testing.T) {
	j, files := newTestJournal(t)
	before := files.content()
	for j.number < 40 {
		from := max(0, int(j.number)-8)
		appendTo(t, j)
		after, number := files.content(), int(j.number)
		end, name := int(j.at), segmentNames[j.current]
		old, whole := before[name], after[name]
		for cut := end - len(j.frame); cut <= end; cut++ {
			if cut == end-block+100 { // the rest of the block is empty
				cut = end - 1
			}
			torn := append(append([]byte{}, whole[:cut]...), old[cut:]...)   // its beginning was written
			turned := append(append([]byte{}, old[:cut]...), whole[cut:]...) // its end was
			for what, content := range map[string][]byte{"beginning": torn, "end": turned} {
				cutFiles := map[string][]byte{segmentNames[1-j.current]: after[segmentNames[1-j.current]], name: content}
				entries, err := readContent(cutFiles, j.id, uint64(from))
				if err != nil {
					t.Fatalf("flush %d, its %s up to byte %d: %v", number, what, cut, err)
				}
				want := number
				if !bytes.Equal(content, whole) {
					want--
				}
				if numbers := flushes(t, entries); len(numbers) != want-from {
					t.Fatalf("flush %d, its %s up to byte %d: there are %v", number, what, cut, numbers)
				}
			}
		}
		before = after
	}
}

// lookOn is the doctor's look at files. What panics is an error.
func lookOn(dir string, files files) (detail string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return (&disk{directory: directory{files, dir}}).examine()
}
