package http

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// TestBadInput: every refusal is a problem that names the field and its bound,
// and changes nothing in the store.
func TestBadInput(t *testing.T) {
	t.Parallel()
	g := start(t)
	held := newID()
	g.do("POST", "/locks/held", "", "Lease-Id: "+held).want(t, 201)
	g.do("POST", "/locks/read", `{"mode":"shared","limit":2}`, "Lease-Id: "+held).want(t, 201)
	g.do("POST", "/locks/reader", `{"mode":"shared"}`, "Lease-Id: "+held).want(t, 201)
	before := unbeaten(g)

	const tooMany = `{"metadata":{"0":"","1":"","2":"","3":"","4":"","5":"","6":"","7":"","8":"","9":"","a":"","b":"","c":"","d":"","e":"","f":"","g":""}}`
	own := "Lease-Id: " + held
	for _, c := range []struct {
		what, method, path, body string
		headers                  []string
		field, says              string
	}{
		{what: "ttl too short", body: `{"ttl_ms":99}`, field: "ttl_ms", says: "99; it must be from 100 to 86400000"},
		{what: "ttl too long", body: `{"ttl_ms":86400001}`, field: "ttl_ms", says: "from 100 to 86400000"},
		{what: "ttl 0", body: `{"ttl_ms":0}`, field: "ttl_ms", says: "is 0; it must be from 100 to 86400000"},
		{what: "ttl negative", body: `{"ttl_ms":-1}`, field: "ttl_ms", says: "from 100"},
		{what: "ttl that overflows a duration", body: `{"ttl_ms":9223372036855}`, field: "ttl_ms", says: "from 100 to 86400000"},
		{what: "ttl that wraps to a good one", body: `{"ttl_ms":18446744073709581616}`, field: "ttl_ms", says: "20 digits; it must be from 100 to 86400000"},
		{what: "ttl of many digits", body: `{"ttl_ms":` + strings.Repeat("9", 400) + `}`, field: "ttl_ms", says: "400 digits"},
		{what: "ttl with fraction", body: `{"ttl_ms":1000.5}`, field: "ttl_ms", says: "integer from 100 to 86400000"},
		{what: "ttl with zero fraction", body: `{"ttl_ms":1000.0}`, field: "ttl_ms", says: "integer"},
		{what: "ttl with exponent", body: `{"ttl_ms":1e3}`, field: "ttl_ms", says: "integer"},
		{what: "ttl a string", body: `{"ttl_ms":"1000"}`, field: "ttl_ms", says: "must be an integer"},
		{what: "ttl a duration", body: `{"ttl_ms":"30s"}`, field: "ttl_ms", says: "must be an integer from 100 to 86400000, in milliseconds, not a string"},
		{what: "ttl in seconds", body: `{"ttl_ms":30}`, field: "ttl_ms", says: "is 30; it must be from 100 to 86400000, in milliseconds"},
		{what: "ttl true", body: `{"ttl_ms":true}`, field: "ttl_ms", says: "must be an integer"},
		{what: "ttl an object", body: `{"ttl_ms":{}}`, field: "ttl_ms", says: "must be an integer"},
		{what: "ttl null", body: `{"ttl_ms":null}`, field: "ttl_ms", says: "is null"},
		{what: "wait too long", body: `{"wait_ms":60001}`, field: "wait_ms", says: "from 0 to 60000"},
		{what: "wait negative", body: `{"wait_ms":-1}`, field: "wait_ms", says: "from 0"},
		{what: "max_hold below ttl", body: `{"max_hold_ms":29999}`, field: "max_hold_ms", says: "from ttl_ms (30000) to 2592000000"},
		{what: "max_hold too long", body: `{"max_hold_ms":2592000001}`, field: "max_hold_ms", says: "from 0 to 2592000000"},
		{what: "max_hold that overflows", body: `{"max_hold_ms":9223372036854775807}`, field: "max_hold_ms", says: "from 0 to 2592000000"},
		{what: "lock_delay too long", body: `{"lock_delay_ms":60001}`, field: "lock_delay_ms", says: "is 60001; it must be from 0 to 60000, in milliseconds"},
		{what: "lock_delay negative", body: `{"lock_delay_ms":-1}`, field: "lock_delay_ms", says: "from 0 to 60000"},
		{what: "lock_delay a duration", body: `{"lock_delay_ms":"5s"}`, field: "lock_delay_ms", says: "must be an integer from 0 to 60000"},
		{what: "mode unknown", body: `{"mode":"Exclusive"}`, field: "mode", says: `must be "exclusive" or "shared"`},
		{what: "mode empty", body: `{"mode":""}`, field: "mode", says: "must be"},
		{what: "mode null", body: `{"mode":null}`, field: "mode", says: "is null"},
		{what: "wait a string", body: `{"wait_ms":"5s"}`, field: "wait_ms", says: "must be an integer"},
		{what: "limit without mode", body: `{"limit":1}`, field: "limit", says: `only for mode "shared"`},
		{what: "limit of an exclusive one", body: `{"mode":"exclusive","limit":1}`, field: "limit", says: `only for mode "shared"`},
		{what: "limit 0 of a shared one", body: `{"mode":"shared","limit":0}`, field: "limit", says: "from 1 to 10000"},
		{what: "limit of a shared one too high", body: `{"mode":"shared","limit":10001}`, field: "limit", says: "from 1 to 10000"},
		{what: "limit negative", body: `{"mode":"shared","limit":-1}`, field: "limit", says: "from 1 to 10000"},
		{what: "limit 0", body: `{"limit":0}`, field: "limit", says: "from 1 to 10000"},
		{what: "permits 0", body: `{"mode":"shared","limit":2,"permits":0}`, field: "permits", says: "from 1 to 10000"},
		{what: "permits too high", body: `{"mode":"shared","limit":10000,"permits":10001}`, field: "permits", says: "from 1 to 10000"},
		{what: "permits above the limit", body: `{"mode":"shared","limit":2,"permits":3}`, field: "permits", says: "from 1 to limit (2)"},
		{what: "permits without limit", body: `{"mode":"shared","permits":1}`, field: "permits", says: "needs limit"},
		{what: "permits as text", body: `{"mode":"shared","limit":2,"permits":"2"}`, field: "permits", says: "not a string"},
		{what: "limit too high", body: `{"limit":10001}`, field: "limit", says: "from 1 to 10000"},
		{what: "hold of a first acquire", body: `{"hold":2}`, field: "hold", says: "is 2; the first acquire must have 1"},
		{what: "hold two deeper", path: "/locks/held", body: `{"hold":3}`, headers: []string{own}, field: "hold", says: "is 3; the lease has a hold of 1"},
		{what: "hold 0", body: `{"hold":0}`, field: "hold", says: "from 1 to 1000"},
		{what: "hold too deep", body: `{"hold":1001}`, field: "hold", says: "from 1 to 1000"},
		{what: "owner too long", body: `{"owner":"` + strings.Repeat("x", 257) + `"}`, field: "owner", says: "at most 256"},
		{what: "owner with control character", body: `{"owner":"a\u0007"}`, field: "owner", says: "U+0007"},
		{what: "owner with raw control character", body: "{\"owner\":\"a\n\"}", field: "owner", says: "not valid JSON"},
		{what: "owner a number", body: `{"owner":7}`, field: "owner", says: "must be a string"},
		{what: "owner null", body: `{"owner":null}`, field: "owner", says: "is null"},
		{what: "owner of broken UTF-8", body: "{\"owner\":\"\xff\"}", field: "owner", says: "UTF-8"},
		{what: "owner of half a surrogate", body: `{"owner":"\ud800"}`, field: "owner", says: "not valid"},
		{what: "metadata entries", body: tooMany, field: "metadata", says: "at most 16"},
		{what: "metadata key", body: `{"metadata":{"` + strings.Repeat("k", 65) + `":""}}`, field: "metadata", says: "at most 64"},
		{what: "metadata empty key", body: `{"metadata":{"":""}}`, field: "metadata", says: "1 to 64"},
		{what: "metadata value", body: `{"metadata":{"k":"` + strings.Repeat("v", 257) + `"}}`, field: "metadata", says: "at most 256"},
		{what: "metadata a list", body: `{"metadata":[]}`, field: "metadata", says: "object whose values are strings"},
		{what: "metadata null", body: `{"metadata":null}`, field: "metadata", says: "is null"},
		{what: "metadata of numbers", body: `{"metadata":{"k":1}}`, field: "metadata", says: "object whose values are strings"},
		{what: "metadata of null", body: `{"metadata":{"k":null}}`, field: "metadata", says: "object whose values are strings"},
		{what: "metadata key twice", body: `{"metadata":{"k":"1","k":"2"}}`, field: "metadata", says: "twice"},
		{what: "metadata of broken UTF-8", body: "{\"metadata\":{\"k\":\"\xc3\"}}", field: "metadata", says: "UTF-8"},
		{what: "metadata cut off", body: `{"metadata":{"k":"v"`, field: "metadata", says: "JSON"},
		{what: "unknown field", body: `{"ttl":1000}`, field: "ttl", says: "known fields: ttl_ms,"},
		{what: "unknown field in disguise", body: `{"ttl_ms\n":1000}`, field: "body", says: "unknown field"},
		{what: "field in another case", body: `{"TTL_MS":1000}`, field: "TTL_MS", says: "not a known field"},
		{what: "field twice", body: `{"ttl_ms":1000,"ttl_ms":1000}`, field: "ttl_ms", says: "twice"},
		{what: "field twice, escaped", body: `{"ttl_ms":1000,"ttl\u005fms":1000}`, field: "ttl_ms", says: "twice"},
		{what: "names where there is one", body: `{"names":["a"]}`, field: "names", says: "not a known field"},
		{what: "trailing object", body: `{}{}`, field: "body", says: "more data"},
		{what: "trailing junk", body: `{} x`, field: "body", says: "more data"},
		{what: "list", body: `[]`, field: "body", says: "JSON object"},
		{what: "null", body: `null`, field: "body", says: "JSON object"},
		{what: "string", body: `"{}"`, field: "body", says: "JSON object"},
		{what: "nothing but space", body: ` `, field: "body", says: "JSON"},
		{what: "cut off", body: `{"ttl_ms":1000`, field: "body", says: "JSON"},
		{what: "form", body: `ttl_ms=1000`, field: "body", says: "JSON"},
		{what: "byte order mark", body: "\ufeff{}", field: "body", says: "JSON"},
		{what: "name without quotes", body: `{ttl_ms:3}`, field: "body", says: `at byte 2 of the body: found "ttl_ms", expected a name in double quotes`},
		{what: "quotes of a shell", body: `'{"ttl_ms":3}'`, field: "body", says: `at byte 1 of the body: found a single quote, expected an object in braces`},
		{what: "value without quotes", body: `{"owner":me}`, field: "owner", says: `at byte 10 of the body: found "me", expected a value`},
		{what: "token without quotes", path: "/fences/a", body: `{"fencing_token":me}`, field: "fencing_token", says: `at byte 18 of the body: found "me", expected a value`},
		{what: "slot without quotes", path: "/fences/a", body: `{"fencing_token":1,"slot":me}`, field: "slot", says: `found "me", expected a value`},
		{what: "value in single quotes", body: `{"owner": 'me'}`, field: "owner", says: `at byte 11 of the body: found a single quote, expected a value`},
		{what: "number with a unit", body: `{"ttl_ms":30000s}`, field: "body", says: `found "s", expected a comma or the end of the object`},
		{what: "comma at the end", body: `{"ttl_ms":3000, }`, field: "body", says: `at byte 17 of the body: found '}', expected a name in double quotes`},
		{what: "comma missing", body: `{"ttl_ms":3000 "owner":"x"}`, field: "body", says: `found a double quote, expected a comma or the end of the object`},
		{what: "colon missing", body: `{"ttl_ms" 3000}`, field: "ttl_ms", says: `found "3000", expected a colon`},
		{what: "list with a comma at the end", path: "/locks", body: `{"names":["a",]}`, field: "names", says: `at byte 15 of the body: found ']', expected a value`},
		{what: "list without comma", path: "/locks", body: `{"names":["a" "b"]}`, field: "names", says: `found a double quote, expected a comma or the end of the list`},
		{what: "escape unknown", body: `{"owner":"\q"}`, field: "owner", says: `at byte 11 of the body: found '\\', which must be escaped in a string`},
		{what: "unprintable", body: "{\x1b[31m}", field: "body", says: `found '\x1b', expected a name`},
		{what: "unprintable beyond ASCII", body: "{\u202e}", field: "body", says: `found '\u202e', expected a name`},
		{what: "a long word", body: `{` + strings.Repeat("x", 10000) + `}`, field: "body", says: `found "xxxxxxxxxxxxxxxxxxxx", expected`},
		{what: "comment", body: `{}//`, field: "body", says: "more data"},
		{what: "deep", body: strings.Repeat("[", 10000), field: "body", says: "JSON object"},

		{what: "name empty", path: "/locks/", field: "name", says: "1 to 255 bytes"},
		{what: "name with space", path: "/locks/a%20b", field: "name", says: "0x20"},
		{what: "name with plus", path: "/locks/a+b", field: "name", says: "'+'"},
		{what: "name with percent", path: "/locks/a%25b", field: "name", says: "'%'"},
		{what: "name with NUL", path: "/locks/%00", field: "name", says: "0x00"},
		{what: "name dot dot", path: "/locks/%2e%2e", field: "name", says: `".."`},
		{what: "name dot dot inside", path: "/locks/a/%2e%2e/b", field: "name", says: `".."`},
		{what: "name dot", path: "/locks/a/.", field: "name", says: `"."`},
		{what: "name with empty segment", path: "/locks/a//b", field: "name", says: "double slash"},
		{what: "name with leading slash", path: "/locks//a", field: "name", says: "slash"},
		{what: "name with escaped leading slash", path: "/locks/%2Fa", field: "name", says: "slash"},
		{what: "name with trailing slash", path: "/locks/a/", field: "name", says: "trailing"},
		{what: "name of 256 bytes", path: "/locks/" + strings.Repeat("n", 256), field: "name", says: "has 256 bytes; a name has 1 to 255"},
		{what: "name with backslash", path: `/locks/a%5Cb`, field: "name", says: "'\\\\'"},
		{what: "name beyond ASCII", path: "/locks/%C3%A9", field: "name", says: "0xc3"},
		{what: "name of broken UTF-8", path: "/locks/%ff", field: "name", says: "0xff"},
		{what: "name with semicolon", path: "/locks/a;b", field: "name", says: "';'"},
		{what: "query", path: "/locks/a?ttl_ms=1000", field: "query", says: "no query parameters"},

		{what: "lease id empty", headers: []string{"Lease-Id: "}, field: "Lease-Id", says: "26 characters"},
		{what: "lease id without dot", headers: []string{"Lease-Id: " + public(held)}, field: "Lease-Id", says: "no dot"},
		{what: "lease id short", headers: []string{"Lease-Id: " + held[:len(held)-1]}, field: "Lease-Id", says: "21 characters"},
		{what: "lease id in lower case", headers: []string{"Lease-Id: " + strings.ToLower(held)}, field: "Lease-Id", says: "upper case"},
		{what: "lease id twice", headers: []string{own, own}, field: "Lease-Id", says: "2 times"},
		{what: "lease ids in a list", headers: []string{own + ", " + held}, field: "Lease-Id", says: "after the dot"},
		{what: "lease id on PUT", method: "PUT", path: "/locks/held", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "lease id on DELETE", method: "DELETE", path: "/locks/held", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "lease id on GET", method: "GET", path: "/locks/held", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "lease id on the list", method: "GET", path: "/locks", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "event stream waits too long", headers: []string{"Accept: Text/Event-Stream"}, body: `{"wait_ms":86400001}`, field: "wait_ms", says: "from 0 to 86400000"},
		{what: "no event stream waits too long", headers: []string{"Accept: application/json, Text/Event-Stream;q=0.9"}, body: `{"wait_ms":60001}`, field: "wait_ms", says: "from 0 to 60000"},
		{what: "precondition on POST", headers: []string{`If-Match: "1"`}, field: "If-Match", says: "DELETE"},
		{what: "precondition on PUT", method: "PUT", path: "/locks/held", headers: []string{own, `If-Match: "1"`}, field: "If-Match", says: "DELETE"},

		{what: "renew ttl 0", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"ttl_ms":0}`, field: "ttl_ms", says: "from 100 to 86400000"},
		{what: "renew ttl too long", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"ttl_ms":86400001}`, field: "ttl_ms", says: "from 100 to 86400000"},
		{what: "renew mode", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"mode":"Shared"}`, field: "mode", says: "must be"},
		{what: "renew mode empty", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"mode":""}`, field: "mode", says: "must be"},
		{what: "renew limit", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"limit":3}`, field: "limit", says: `only for mode "shared"`},
		{what: "renew limit 0", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"mode":"shared","limit":0}`, field: "limit", says: "from 1 to 10000"},
		{what: "renew an upgrade", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"mode":"exclusive"}`, field: "mode", says: "can't be upgraded"},
		{what: "renew more permits and the limit", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"limit":1,"permits":2}`, field: "permits", says: "the lease has 1"},
		{what: "renew without the limit", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"mode":"shared"}`, field: "limit", says: "the lease has a limit of 2"},
		{what: "renew limit too high", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"limit":10001}`, field: "limit", says: "from 1 to 10000"},
		{what: "renew limit of an exclusive one", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"mode":"exclusive","limit":3}`, field: "limit", says: `only for mode "shared"`},
		{what: "renew limit of a reader", method: "PUT", path: "/locks/reader", headers: []string{own}, body: `{"limit":3}`, field: "limit", says: "is given, but the lease is shared without a limit; release it and acquire one with a limit"},
		{what: "renew permits 0", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"permits":0}`, field: "permits", says: "from 1 to 10000"},
		{what: "renew more permits", method: "PUT", path: "/locks/read", headers: []string{own}, body: `{"permits":2}`, field: "permits", says: "the lease has 1"},
		{what: "renew wait", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"wait_ms":0}`, field: "wait_ms", says: "known fields: ttl_ms, mode, limit, permits, owner and metadata"},
		{what: "renew owner", method: "PUT", path: "/locks/held", headers: []string{own}, body: `{"owner":"` + strings.Repeat("x", 257) + `"}`, field: "owner", says: "has a text of 257 bytes; at most 256 are allowed"},
		{what: "renew name", method: "PUT", path: "/locks/a%20b", headers: []string{own}, field: "name", says: "0x20"},

		{what: "release with body", method: "DELETE", path: "/locks/held", headers: []string{own}, body: `{"ttl_ms":1000}`, field: "ttl_ms", says: "not a known field"},
		{what: "release to a depth", method: "DELETE", path: "/locks/held", headers: []string{own, "Lease-Hold: 1001"}, field: "Lease-Hold", says: "from 1 to 1000"},
		{what: "break to a depth", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "1"`, "Lease-Hold: 2"}, field: "Lease-Hold", says: "can't be combined with If-Match"},
		{what: "release to depth 0", method: "DELETE", path: "/locks/held", headers: []string{own, "Lease-Hold: 0"}, field: "Lease-Hold", says: "from 1 to 1000"},
		{what: "release to depths", method: "DELETE", path: "/locks/held", headers: []string{own, "Lease-Hold: 1", "Lease-Hold: 1"}, field: "Lease-Hold", says: "2 times"},
		{what: "release to no depth", method: "DELETE", path: "/locks/held", headers: []string{own, "Lease-Hold: +1"}, field: "Lease-Hold", says: "from 1 to 1000"},
		{what: "release and break", method: "DELETE", path: "/locks/held", headers: []string{own, `If-Match: "1"`}, field: "If-Match", says: "Lease-Id"},
		{what: "break all", method: "DELETE", path: "/locks/held", headers: []string{"If-Match: *"}, field: "If-Match", says: "strong"},
		{what: "break a weak one", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: W/"1"`}, field: "If-Match", says: "strong"},
		{what: "break a list", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "1", "2"`}, field: "If-Match", says: "one strong"},
		{what: "break twice", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "1"`, `If-Match: "1"`}, field: "If-Match", says: "2 times"},
		{what: "break unquoted", method: "DELETE", path: "/locks/held", headers: []string{"If-Match: 1"}, field: "If-Match", says: "quotes"},
		{what: "break nothing", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: ""`}, field: "If-Match", says: "1 to 9007199254740991"},
		{what: "break 0", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "0"`}, field: "If-Match", says: "1 to 9007199254740991"},
		{what: "break 2^53", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "9007199254740992"`}, field: "If-Match", says: "1 to 9007199254740991"},
		{what: "break with one quote", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "`}, field: "If-Match", says: "quotes"},
		{what: "break name", method: "DELETE", path: "/locks/a//b", headers: []string{`If-Match: "1"`}, field: "name", says: "slash"},

		{what: "inspect name", method: "GET", path: "/locks/..", field: "name", says: `".."`},
		{what: "inspect query", method: "GET", path: "/locks/held?x", field: "query", says: "no query parameters"},
		{what: "list limit 0", method: "GET", path: "/locks?limit=0", field: "limit", says: "is 0; it must be from 1 to 1000"},
		{what: "list limit 1001", method: "GET", path: "/locks?limit=1001", field: "limit", says: "is 1001; it must be from 1 to 1000"},
		{what: "list limit in words", method: "GET", path: "/locks?limit=ten", field: "limit", says: "from 1 to 1000"},
		{what: "list limit empty", method: "GET", path: "/locks?limit=", field: "limit", says: "from 1 to 1000"},
		{what: "list limit padded", method: "GET", path: "/locks?limit=007", field: "limit", says: "from 1 to 1000"},
		{what: "list limit twice", method: "GET", path: "/locks?limit=1&limit=1", field: "limit", says: "2 times"},
		{what: "list prefix", method: "GET", path: "/locks?prefix=a%20", field: "prefix", says: "0x20"},
		{what: "list prefix of 256", method: "GET", path: "/locks?prefix=" + strings.Repeat("p", 256), field: "prefix", says: "at most 255"},
		{what: "list q", method: "GET", path: "/locks?q=" + strings.Repeat("q", 257), field: "q", says: "at most 256"},
		{what: "list q of broken UTF-8", method: "GET", path: "/locks?q=%ff", field: "q", says: "UTF-8"},
		{what: "list q with NUL", method: "GET", path: "/locks?q=%00", field: "q", says: "control"},
		{what: "list cursor", method: "GET", path: "/locks?cursor=!", field: "cursor", says: "next_cursor"},
		{what: "list cursor empty", method: "GET", path: "/locks?cursor=", field: "cursor", says: "next_cursor"},
		{what: "list cursor padded", method: "GET", path: "/locks?cursor=YQ%3D%3D", field: "cursor", says: "next_cursor"},
		{what: "list cursor with stray bits", method: "GET", path: "/locks?cursor=YR", field: "cursor", says: "next_cursor"},
		{what: "list cursor of no name", method: "GET", path: "/locks?cursor=Ly8", field: "cursor", says: "next_cursor"},
		{what: "list unknown", method: "GET", path: "/locks?owner=x", field: "query", says: "known parameters: prefix, q, mode, held_for_ms, expires_within_ms, waiting, attached, unrenewed, total, limit and cursor"},
		{what: "break with another field", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "17"`}, body: `{"why":"x"}`, field: "why", says: "known fields: reason"},
		{what: "break reason too long", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "17"`}, body: `{"reason":"` + strings.Repeat("r", 257) + `"}`, field: "reason", says: "at most 256"},
		{what: "break reason with newline", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "17"`}, body: `{"reason":"a\nb"}`, field: "reason", says: "U+000A"},
		{what: "notice without a break", method: "DELETE", path: "/locks/held?notice_ms=1000", headers: []string{own}, field: "notice_ms", says: "If-Match"},
		{what: "notice too short", method: "DELETE", path: "/locks/held?notice_ms=99", headers: []string{`If-Match: "17"`}, field: "notice_ms", says: "from 100 to 86400000"},
		{what: "notice too long", method: "DELETE", path: "/locks/held?notice_ms=86400001", headers: []string{`If-Match: "17"`}, field: "notice_ms", says: "from 100 to 86400000"},
		{what: "notice of 0", method: "DELETE", path: "/locks/held?notice_ms=0", headers: []string{`If-Match: "17"`}, field: "notice_ms", says: "from 100"},
		{what: "notice of no number", method: "DELETE", path: "/locks/held?notice_ms=1e3", headers: []string{`If-Match: "17"`}, field: "notice_ms", says: "integer"},
		{what: "after too short", method: "DELETE", path: "/locks/held?after_ms=99", headers: []string{own}, field: "after_ms", says: "from 100 to "},
		{what: "after too long", method: "DELETE", path: "/locks/held?after_ms=86400001", headers: []string{own}, field: "after_ms", says: "from 100 to "},
		{what: "after of no number", method: "DELETE", path: "/locks/held?after_ms=1e3", headers: []string{own}, field: "after_ms", says: "integer"},
		{what: "after twice", method: "DELETE", path: "/locks/held?after_ms=1000&after_ms=1000", headers: []string{own}, field: "after_ms", says: "2 times"},
		{what: "after with a hold", method: "DELETE", path: "/locks/held?after_ms=1000", headers: []string{own, "Lease-Hold: 2"}, field: "Lease-Hold", says: "after_ms"},
		{what: "after with a break", method: "DELETE", path: "/locks/held?after_ms=1000", headers: []string{`If-Match: "17"`}, field: "after_ms", says: "Lease-Id"},
		{what: "after of several with a hold", method: "DELETE", path: "/locks?name=held&after_ms=1000", headers: []string{own, "Lease-Hold: 2"}, field: "Lease-Hold", says: "after_ms"},
		{what: "notice twice", method: "DELETE", path: "/locks/held?notice_ms=1000&notice_ms=1000", headers: []string{`If-Match: "17"`}, field: "notice_ms", says: "2 times"},
		{what: "break with another parameter", method: "DELETE", path: "/locks/held?notice=1000", headers: []string{`If-Match: "17"`}, field: "query", says: "known parameters: notice_ms and after_ms"},
		{what: "evict nobody", method: "DELETE", path: "/queues/held", field: "lease", says: "missing"},
		{what: "evict by a whole lease id", method: "DELETE", path: "/queues/held?lease=" + newID(), field: "lease", says: "26 characters"},
		{what: "evict two", method: "DELETE", path: "/queues/held?lease=" + public(newID()) + "&lease=" + public(newID()), field: "lease", says: "2 times"},
		{what: "evict with another parameter", method: "DELETE", path: "/queues/held?lease=" + public(newID()) + "&reason=x", field: "query", says: "known parameters: lease"},
		{what: "evict oneself", method: "DELETE", path: "/queues/held?lease=" + public(newID()), headers: []string{own}, field: "Lease-Id", says: "lease"},
		{what: "evict by token", method: "DELETE", path: "/queues/held?lease=" + public(newID()), headers: []string{`If-Match: "17"`}, field: "If-Match", says: "only for DELETE"},
		{what: "evict with another field", method: "DELETE", path: "/queues/held?lease=" + public(newID()), body: `{"why":"x"}`, field: "why", says: "known fields: reason"},
		{what: "eviction reason too long", method: "DELETE", path: "/queues/held?lease=" + public(newID()), body: `{"reason":"` + strings.Repeat("r", 257) + `"}`, field: "reason", says: "at most 256"},
		{what: "break reason of null", method: "DELETE", path: "/locks/held", headers: []string{`If-Match: "17"`}, body: `{"reason":null}`, field: "reason", says: "null"},
		{what: "release with a reason", method: "DELETE", path: "/locks/held", headers: []string{own}, body: `{"reason":"x"}`, field: "reason", says: "known fields: none"},
		{what: "list mode", method: "GET", path: "/locks?mode=writer", field: "mode", says: "exclusive"},
		{what: "list held_for_ms 0", method: "GET", path: "/locks?held_for_ms=0", field: "held_for_ms", says: "from 1 to 2592000000, in milliseconds"},
		{what: "list held_for_ms of 31 days", method: "GET", path: "/locks?held_for_ms=2678400000", field: "held_for_ms", says: "from 1 to 2592000000"},
		{what: "list held_for_ms padded", method: "GET", path: "/locks?held_for_ms=01", field: "held_for_ms", says: "from 1 to 2592000000"},
		{what: "list expires_within_ms", method: "GET", path: "/locks?expires_within_ms=1s", field: "expires_within_ms", says: "from 1 to 2592000000"},
		{what: "list waiting", method: "GET", path: "/locks?waiting=1", field: "waiting", says: "true"},
		{what: "list attached", method: "GET", path: "/locks?attached=false", field: "attached", says: "true"},
		{what: "list unrenewed", method: "GET", path: "/locks?unrenewed=0", field: "unrenewed", says: "true"},
		{what: "list total", method: "GET", path: "/locks?total=", field: "total", says: "true"},
		{what: "list malformed", method: "GET", path: "/locks?q=%zz", field: "query", says: "malformed"},
		{what: "list with semicolon", method: "GET", path: "/locks?q=a;limit=1", field: "query", says: "malformed"},

		{what: "set without names", path: "/locks", field: "names", says: "is missing; it is a list of 1 to 64"},
		{what: "set of nothing", path: "/locks", body: `{"names":[]}`, field: "names", says: "has 0 names; it must have from 1 to 64"},
		{what: "set of 65", path: "/locks", body: `{"names":[` + strings.Repeat(`"a",`, 64) + `"b"]}`, field: "names", says: "has 65 names; it must have from 1 to 64"},
		{what: "set with a name twice", path: "/locks", body: `{"names":["b","a","b"]}`, field: "names", says: "has b twice"},
		{what: "set with an empty name", path: "/locks", body: `{"names":["a",""]}`, field: "names", says: "number 2: name is empty"},
		{what: "set with a bad name", path: "/locks", body: `{"names":["a//b"]}`, field: "names", says: "double slash"},
		{what: "set of numbers", path: "/locks", body: `{"names":[1]}`, field: "names", says: "each a string"},
		{what: "set of nulls", path: "/locks", body: `{"names":[null]}`, field: "names", says: "each a string"},
		{what: "set a string", path: "/locks", body: `{"names":"a"}`, field: "names", says: "must be a list"},
		{what: "set null", path: "/locks", body: `{"names":null}`, field: "names", says: "is null"},
		{what: "set cut off", path: "/locks", body: `{"names":["a"`, field: "names", says: "JSON"},
		{what: "set twice", path: "/locks", body: `{"names":["a"],"names":["b"]}`, field: "names", says: "twice"},
		{what: "set with a wait too long", path: "/locks", body: `{"names":["a"],"wait_ms":60001}`, field: "wait_ms", says: "from 0 to 60000"},
		{what: "set with limit", path: "/locks", body: `{"names":["a"],"limit":2}`, field: "limit", says: `only for mode "shared"`},
		{what: "set as a stream with a linger too long", path: "/locks", body: `{"names":["a"],"ttl_ms":5000,"linger_ms":5001}`, headers: []string{"Accept: text/event-stream"}, field: "linger_ms", says: "from 0 to ttl_ms, 5000"},
		{what: "set with a linger", path: "/locks", body: `{"names":["a"],"linger_ms":1}`, field: "linger_ms", says: "Accept: text/event-stream"},
		{what: "set with query", path: "/locks?names=a", body: `{"names":["a"]}`, field: "query", says: "no query parameters"},
		{what: "set with precondition", path: "/locks", body: `{"names":["a"]}`, headers: []string{`If-Match: "1"`}, field: "If-Match", says: "DELETE"},
		{what: "set with a lease id of one name", path: "/locks", body: `{"names":["held"]}`, headers: []string{own}, field: "Lease-Id", says: "another set of names"},
		{what: "set with a bad lease id", path: "/locks", body: `{"names":["a"]}`, headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "renew set without names", method: "PUT", path: "/locks", headers: []string{own}, field: "names", says: "is missing"},
		{what: "renew set with a hold", method: "PUT", path: "/locks", headers: []string{own}, body: `{"names":["held"],"hold":1}`, field: "hold", says: "known fields: names, ttl_ms, mode, limit, permits, owner and metadata"},
		{what: "renew set with ttl 0", method: "PUT", path: "/locks", headers: []string{own}, body: `{"names":["held"],"ttl_ms":0}`, field: "ttl_ms", says: "from 100"},
		{what: "renew set with query", method: "PUT", path: "/locks?name=held", headers: []string{own}, field: "query", says: "no query parameters"},
		{what: "renew set with precondition", method: "PUT", path: "/locks", headers: []string{own, `If-Match: "1"`}, body: `{"names":["held"]}`, field: "If-Match", says: "DELETE"},
		{what: "renew set with an upgrade", method: "PUT", path: "/locks", headers: []string{own}, body: `{"names":["read"],"mode":"exclusive"}`, field: "mode", says: "can't be upgraded"},
		{what: "release set without names", method: "DELETE", path: "/locks", headers: []string{own}, field: "name", says: "is missing; give 1 to 64"},
		{what: "release set of 65", method: "DELETE", path: "/locks?name=a" + strings.Repeat("&name=b", 64), headers: []string{own}, field: "name", says: "has 65 names"},
		{what: "release set with a name twice", method: "DELETE", path: "/locks?name=a&name=a", headers: []string{own}, field: "name", says: "has a twice"},
		{what: "release set with an empty name", method: "DELETE", path: "/locks?name=", headers: []string{own}, field: "name", says: "name is empty"},
		{what: "release set with another parameter", method: "DELETE", path: "/locks?names=a", headers: []string{own}, field: "query", says: "known parameters: name"},
		{what: "release set with a body", method: "DELETE", path: "/locks?name=held", headers: []string{own}, body: `{"names":["held"]}`, field: "names", says: "not a known field"},
		{what: "release set to depth 0", method: "DELETE", path: "/locks?name=held", headers: []string{own, "Lease-Hold: 0"}, field: "Lease-Hold", says: "from 1 to 1000"},
		{what: "break a set", method: "DELETE", path: "/locks?name=held", headers: []string{`If-Match: "1"`}, field: "If-Match", says: "one name"},

		{what: "history of no name", method: "GET", path: "/history/", field: "name", says: "1 to 255 bytes"},
		{what: "history of a bad name", method: "GET", path: "/history/a//b", field: "name", says: "slash"},
		{what: "history with query", method: "GET", path: "/history/a?limit=1", field: "query", says: "no query parameters"},
		{what: "history with a bad lease id", method: "GET", path: "/history/a", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
		{what: "events of a bad prefix", method: "GET", path: "/events?prefix=%20", field: "prefix", says: "0x20"},
		{what: "events of two prefixes", method: "GET", path: "/events?prefix=a&prefix=b", field: "prefix", says: "2 times"},
		{what: "events of something", method: "GET", path: "/events?name=a", field: "query", says: "known parameters: prefix"},
		{what: "events after nothing", method: "GET", path: "/events", headers: []string{"Last-Event-ID: "}, field: "Last-Event-ID", says: "1 to 64"},
		{what: "events after junk", method: "GET", path: "/events", headers: []string{"Last-Event-ID: a b"}, field: "Last-Event-ID", says: "1 to 64"},
		{what: "events after a novel", method: "GET", path: "/events", headers: []string{"Last-Event-ID: " + strings.Repeat("1", 65)}, field: "Last-Event-ID", says: "1 to 64"},
		{what: "events after two", method: "GET", path: "/events", headers: []string{"Last-Event-ID: 1", "Last-Event-ID: 2"}, field: "Last-Event-ID", says: "2 times"},
		{what: "events with a bad lease id", method: "GET", path: "/events", headers: []string{"Lease-Id: x"}, field: "Lease-Id", says: "no dot"},
	} {
		t.Run(c.what, func(t *testing.T) {
			g.t = t
			method, path := c.method, c.path
			if method == "" {
				method = "POST"
			}
			if path == "" {
				path = "/locks/free"
			}
			a := g.do(method, path, c.body, c.headers...).problem(t, 400, fencing.CodeInvalidRequest)
			detail := a.text("detail")
			if a.text("field") != c.field || !strings.Contains(detail, c.says) || !strings.HasPrefix(detail, c.field+" ") {
				t.Errorf("field %q, detail %q; want %q and %q", a.text("field"), detail, c.field, c.says)
			}
			if len(detail) > 300 {
				t.Errorf("the detail has %d bytes", len(detail))
			}
			if !reflect.DeepEqual(unbeaten(g), before) {
				t.Fatal("the store has changed")
			}
		})
	}
	g.t = t
}

// unbeaten is the state without what heartbeats change in it meanwhile.
func unbeaten(g *gateway) *fencing.State {
	s := g.store.Snapshot()
	s.Gateways = fencing.Gateways{}
	return s
}

func TestHeadersRequired(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.acquired("a")
	before := g.store.Snapshot()
	g.do("PUT", "/locks", `{"names":["a"]}`).problem(t, 428, fencing.CodeLeaseIDRequired)
	g.do("DELETE", "/locks?name=a", "").problem(t, 428, fencing.CodeLeaseIDRequired)
	g.do("PUT", "/locks/a", "").problem(t, 428, fencing.CodeLeaseIDRequired)
	g.do("DELETE", "/locks/a", "").problem(t, 428, fencing.CodeLeaseIDRequired)
	if !reflect.DeepEqual(g.store.Snapshot(), before) {
		t.Error("the store has changed")
	}
}

func TestBodySize(t *testing.T) {
	t.Parallel()
	g := start(t)
	padded := func(size int) string { return `{"owner":"x"` + strings.Repeat(" ", size-13) + "}" }
	id := newID()
	g.do("POST", "/locks/a", padded(16<<10), "Lease-Id: "+id).want(t, 201)
	before := g.store.Snapshot()
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		for _, size := range []int{16<<10 + 1, 1 << 20} {
			g.do("DELETE", "/queues/a?lease="+public(newID()), padded(size)).problem(t, 413, fencing.CodeTooLarge)
			for _, path := range []string{"/locks/a", "/locks"} {
				if method == "DELETE" && path == "/locks" {
					path += "?name=a"
				}
				a := g.do(method, path, padded(size), "Lease-Id: "+id).problem(t, 413, fencing.CodeTooLarge)
				if !strings.Contains(a.text("detail"), "16384") {
					t.Errorf("%s", a.body)
				}
			}
		}
	}
	if !reflect.DeepEqual(g.store.Snapshot(), before) {
		t.Error("the store has changed")
	}
}

// TestLimitsThemselves: the bounds are allowed.
func TestLimitsThemselves(t *testing.T) {
	t.Parallel()
	g := start(t)
	for i, body := range []string{
		"", "{}", ` { } `, `{"ttl_ms":100}`, `{"ttl_ms":86400000}`, `{"wait_ms":0,"hold":1,"mode":"exclusive","max_hold_ms":0}`,
		`{"lock_delay_ms":0}`, `{"lock_delay_ms":60000}`, `{"max_hold_ms":30000}`, `{"max_hold_ms":2592000000}`, `{"owner":"` + strings.Repeat("x", 256) + `"}`, `{"metadata":{}}`,
		`{"metadata":{"` + strings.Repeat("k", 64) + `":"` + strings.Repeat("v", 256) + `"}}`, `{"owner":"\u00e9\ud83d\udd12"}`,
	} {
		g.do("POST", "/locks/n"+strconv.Itoa(i), body).want(t, 201)
	}
	id := g.acquired("h")
	g.do("DELETE", "/locks/h", "{}", "Lease-Id: "+id, "Lease-Hold: 1").want(t, 204)
	g.do("POST", "/locks/e", "", "Accept: */*").want(t, 201)
	g.do("POST", "/locks/f", "", "Accept: text/event-stream;q=0").want(t, 201)
	g.do("POST", "/locks/w", `{"wait_ms":60000}`).want(t, 201)
	g.do("POST", "/locks/s", `{"mode":"shared"}`).want(t, 201)
	g.do("POST", "/locks/s1", `{"mode":"shared","limit":1}`).want(t, 201)
	g.do("POST", "/locks/s2", `{"mode":"shared","limit":10000}`).want(t, 201)
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprintf("%q", "set/"+strconv.Itoa(i)))
	}
	g.do("POST", "/locks", `{"names":[`+strings.Join(names, ",")+`]}`).want(t, 201)
}
