package sql

import (
	"bytes"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

// A value is read whatever form it has.
func TestOctets(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`\x`: "", `\x00ff5c`: "\x00\xff\\", "": "", `a\\b\000\377\134'`: "a\\b\x00\xff\\'", `\\x00`: `\x00`,
	} {
		var o octets
		if err := o.ScanText(pgtype.Text{String: text, Valid: true}); err != nil || !bytes.Equal(o, []byte(want)) {
			t.Errorf("%s: %q, %v; want %q", text, o, err, want)
		}
	}
	for _, bad := range []string{`\x0`, `\xzz`, `\`, `\12`, `\400`, `\089`, `a\`} {
		var o octets
		if err := o.ScanText(pgtype.Text{String: bad, Valid: true}); err == nil {
			t.Errorf("%s is read as %q", bad, o)
		}
	}
}
