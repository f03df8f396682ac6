package http

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"fencepost/internal/seed"
)

// interesting is what mutations put in: what parsers tell apart.
var interesting = []string{
	"", "\x00", "\n", "\r\n", " ", "\"", "\\", "/", "//", "..", "%2F", "%00", "?", "#", "&", "=", ",", ";", ":", "{", "}", "[", "]", "\xff", "\xc0\x80", "\u00e9", "\u202e", "\ufeff",
	"0", "-1", "1", "60000", "2147483648", "9223372036854775807", "9223372036854775808", "1e400", "0.5", "null", "true", "false", "NaN",
	`"name":"a"`, `"names":["a"]`, `"ttl_ms":`, `"wait_ms":0`, `"mode":"shared"`, `"mode":"exclusive"`, `"limit":`, `"hold":`, `"owner":"o"`, `"metadata":{}`, `"max_hold_ms":`, `"lock_delay_ms":`,
	`"\u0000"`, `"\udfff"`, "a", "b", "locks", "01JZ0000000000000000000000", ".", "*",
}

// mutated returns one of the seeds with up to eight changes: bits flipped, bytes and
// known words put in, parts left out, doubled, or taken from another seed.
func mutated(random *rand.Rand, seeds []string) []byte {
	b := []byte(seeds[random.IntN(len(seeds))])
	at := func() int { return random.IntN(len(b) + 1) }
	put := func(i, j int, more string) { b = append(b[:i:i], append([]byte(more), b[j:]...)...) }
	for range 1 + random.IntN(8) {
		i, j := at(), at()
		i, j = min(i, j), max(i, j)
		switch random.IntN(6) {
		case 0:
			if i < len(b) {
				b[i] ^= 1 << random.IntN(8)
			}
		case 1:
			put(i, i, string([]byte{byte(random.IntN(256))}))
		case 2:
			put(i, i, interesting[random.IntN(len(interesting))])
		case 3:
			put(i, j, interesting[random.IntN(len(interesting))])
		case 4:
			put(j, j, string(b[i:j]))
		case 5:
			other := seeds[random.IntN(len(seeds))]
			put(i, j, other[random.IntN(len(other)+1):])
		}
	}
	return b[:min(len(b), 4<<10)]
}

// inputsOfAServer is how many inputs one server gets: with an hour for each, its clock
// would come to the end of the tokens, in the year 2255, after two million.
const inputsOfAServer = 100_000

// TestMutatedInputs gives the fuzz targets of the router inputs that are made of their
// seeds in this process, which is faster by far than the search for inputs that reach
// new code. FENCEPOST_INPUTS is how many, FENCEPOST_SEED the choice of them.
func TestMutatedInputs(t *testing.T) {
	t.Parallel()
	seed, inputs := seed.Of(t), int(seed.Number(t, "FENCEPOST_INPUTS", 5_000))
	var pairs []string
	for _, pair := range namesSeeds {
		pairs = append(pairs, pair[0], pair[1])
	}
	workers := runtime.GOMAXPROCS(0)
	for i := range workers {
		t.Run(fmt.Sprintf("seed %d worker %d", seed, i), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			var name, leaseID func(*testing.T, string)
			var names func(*testing.T, string, string)
			var body func(*testing.T, []byte)
			var last string
			defer func() {
				if t.Failed() {
					t.Log("the input: ", last)
				}
			}()
			n := (inputs + i) / workers
			for k := range n {
				if k%inputsOfAServer == 0 {
					g := newServer(t, quiet)
					name, leaseID, names, body = tryName(g), tryLeaseID(g), tryNames(g), tryBody(g)
				}
				switch k % 5 {
				case 0:
					in := string(mutated(random, nameSeeds))
					last = fmt.Sprintf("name %q", in)
					name(t, in)
				case 1:
					in := string(mutated(random, leaseIDSeeds))
					last = fmt.Sprintf("lease id %q", in)
					leaseID(t, in)
				case 2:
					one, two := string(mutated(random, pairs)), string(mutated(random, pairs))
					last = fmt.Sprintf("names %q %q", one, two)
					names(t, one, two)
				default:
					in := mutated(random, bodySeeds)
					last = fmt.Sprintf("body %q", in)
					body(t, in)
				}
			}
			t.Logf("%d inputs", n)
		})
	}
}
