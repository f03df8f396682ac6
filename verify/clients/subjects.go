package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fencepost/verify/system"
)

// ttlOfTrials is the TTL of all leases of the trials.
const ttlOfTrials = 3 * time.Second

// subject is a client that trials are made with.
type subject struct {
	name  string
	args  []string
	env   []string
	ends  bool // it ends its work by itself, which is another process: see "When the command is ended" in docs/lockctl.md
	group bool // a signal may come to its process group, too
}

// writer writes the parts from a shell; before is what it does before each.
const writer = `
part=1
while [ $part -le 20 ]; do
	%s
	case $(curl -s -o /dev/null -w '%%{http_code}' -X PUT -H "Fencing-Token: $FENCING_TOKEN" -d "part $part by a shell" "$STORAGE") in
	2??) ;;
	412) exit 124 ;;
	*) exit 1 ;;
	esac
	sleep 0.2
	part=$((part + 1))
done
`

// acquiring is a script that holds its lock by lockctl acquire, renew and release.
const acquiring = `
lease=
trap 'eval "$lease"; [ -z "${LEASE_ID:-}" ] || "$LOCKCTL" release %[1]s' EXIT
trap 'exit 143' TERM
lease=$("$LOCKCTL" acquire -ttl %[2]s -wait 30s %[1]s) || exit
eval "$lease"
`

// subjects are all of them, with what they need in a directory. missing are the commands that are not there.
func subjects(examples, dir string) (all []subject, missing []string, err error) {
	lockctl, err := system.Binary(system.Build{Program: "lockctl"})
	if err != nil {
		return nil, nil, err
	}
	self := fmt.Sprintf("/proc/%d/exe", os.Getpid())
	all = []subject{
		{name: "client.Do", args: []string{self}, env: []string{role + "=do"}},
		{name: "client.Acquire", args: []string{self}, env: []string{role + "=acquire"}},
		{name: "lockctl run", args: []string{lockctl, "run", "-ttl", ttlOfTrials.String(), "-wait", "30s", lockOfPrograms, "--", "sh", "-c", fmt.Sprintf(writer, "")}, ends: true},
		{name: "lockctl acquire", args: []string{"sh", "-c", fmt.Sprintf(acquiring, lockOfPrograms, ttlOfTrials) +
			fmt.Sprintf(writer, `"$LOCKCTL" renew `+lockOfPrograms+` >/dev/null || exit 124`)}, env: []string{"LOCKCTL=" + lockctl}, group: true},
	}
	missing = Languages{}.Missing()
	for _, l := range languages {
		if slices.Contains(missing, l.command) {
			continue
		}
		if err := l.copy(examples, dir, ttlOfTrials); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.name, err)
		}
		s := subject{name: l.name, args: []string{l.command, filepath.Join(dir, l.file)}, env: []string{javaOptions}}
		if l.command == "java" { // compiled once: each start would take seconds
			if said, err := exec.Command("javac", "-d", dir, filepath.Join(dir, l.file)).CombinedOutput(); err != nil {
				return nil, nil, fmt.Errorf("%s: %w: %s", l.name, err, said)
			}
			s.args = []string{"java", "-Xshare:auto", "-cp", dir, strings.TrimSuffix(l.file, ".java")}
		}
		all = append(all, s)
	}
	return all, missing, nil
}
