package clients

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"fencepost/verify/check"
)

// slowCurl stands for curl on a machine that has no time for it: a renewal takes twice the
// TTL, whatever time it was given.
const slowCurl = `#!/bin/sh
case "$*" in
*"-X PUT"*/locks/*) echo >>"$0.slow"; exec sleep %d ;;
esac
exec %s "$@"
`

// slowly has the program of the shell start a program that takes longer than the lease: no
// part may come after the lease's end. The others renew in threads of their own.
func (l language) slowly(ctx context.Context, dir string, r *check.Result) error {
	if l.name != "bash" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patienceOfPrograms)
	defer cancel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		return err
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	script := fmt.Sprintf(slowCurl, int(2*languageTTL.Seconds()), curl)
	if err := os.WriteFile(filepath.Join(bin, "curl"), []byte(script), 0o700); err != nil {
		return err
	}
	if _, err := l.despite(ctx, dir, "nothing, by a curl that is slow", whole("{}"), r, "PATH="+bin+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	slow, err := os.ReadFile(filepath.Join(bin, "curl.slow")) // a byte each
	r.Harms.Add("slow curl", check.Harm{To: l.name, What: "renewals that were slow", N: len(slow)})
	return err
}
