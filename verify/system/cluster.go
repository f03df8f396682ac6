package system

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fencepost/internal/redis/redistest"
)

// clusterSecret is what the nodes of a cluster know each other by here.
var clusterSecret = strings.Repeat("not for production ", 2)

// startCluster starts gateways that are a cluster: all at once, for each waits for the others.
func (s *System) startCluster() error {
	s.Links = newLinks()
	s.stops = append(s.stops, s.Links.close)
	for range s.options.Gateways {
		if _, err := s.newNode(); err != nil {
			return err
		}
	}
	var list []string
	for _, g := range s.Gateways {
		list = append(list, g.node)
	}
	s.url = "raft://" + strings.Join(list, ",")
	errs := make([]error, len(s.Gateways))
	var starting sync.WaitGroup
	for i, g := range s.Gateways {
		s.settleNode(g)
		starting.Go(func() { errs[i] = g.Start() })
	}
	starting.Wait()
	return errors.Join(errs...)
}

// newNode makes a gateway, with the way to it, that is not started.
func (s *System) newNode(env ...string) (*Gateway, error) {
	port, err := redistest.FreePort()
	if err != nil {
		return nil, err
	}
	real := fmt.Sprintf("127.0.0.1:%d", port)
	at := s.Links.count()
	front, stop, err := s.Links.front(at, real)
	if err != nil {
		return nil, err
	}
	s.stops = append(s.stops, stop)
	g := &Gateway{Name: fmt.Sprint("gateway ", at+1), build: s.options.Build, node: front, at: at, dir: filepath.Join(s.dir, fmt.Sprintf("node-%d", at))}
	g.env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir, "FENCEPOST_DATA_DIR=" + g.dir, "FENCEPOST_CLUSTER_ADDR=" + front,
		"FENCEPOST_CLUSTER_LISTEN_ADDR=" + real, "FENCEPOST_CLUSTER_SECRET=" + clusterSecret,
	}, s.options.Env...)
	g.env = append(g.env, env...)
	s.stops = append(s.stops, func() error { return errors.Join(g.Kill(), g.Flaws()) })
	s.Links.join(g)
	s.Gateways = append(s.Gateways, g)
	return g, nil
}

// settleNode gives a node its list.
func (s *System) settleNode(g *Gateway) { g.env = append(g.env, "FENCEPOST_STORE="+s.url) }

// NewNode starts a gateway that no cluster has, and does not wait until it is ready: it is to be
// added by Command.
func (s *System) NewNode() (*Gateway, error) {
	g, err := s.newNode()
	if err != nil {
		return nil, err
	}
	g.env = append(g.env, "FENCEPOST_STORE="+s.url+","+g.node)
	return g, g.Launch()
}

// Node returns the address of a gateway among the nodes of its cluster.
func (g *Gateway) Node() string { return g.node }

// CutOff has what a node sends to the others, what it is sent, or both not arrive, until the end.
func (s *System) CutOff(g *Gateway, sends, gets bool) *Harm {
	seen := Since(s.Links.Held)
	for _, other := range s.Gateways {
		if other != g && sends {
			s.Links.Cut(g.at, other.at)
		}
		if other != g && gets {
			s.Links.Cut(other.at, g.at)
		}
	}
	return &Harm{g.Name, "packets held", seen, func() error { s.Links.Mend(); return nil }}
}

// Drop has a gateway that does not run be none of the system's any more.
func (s *System) Drop(g *Gateway) {
	s.Gateways = slices.DeleteFunc(slices.Clone(s.Gateways), func(of *Gateway) bool { return of == g })
}

// Wipe has a gateway that does not run lose its disk, and returns how many files were on it. What it had is kept for Swap.
func (g *Gateway) Wipe() (files int, err error) {
	err = filepath.WalkDir(g.dir, func(_ string, is fs.DirEntry, err error) error {
		if err == nil && !is.IsDir() {
			files++
		}
		return err
	})
	if err = errors.Join(err, os.RemoveAll(g.dir+".lost")); err != nil {
		return 0, err
	}
	return files, os.Rename(g.dir, g.dir+".lost")
}

// Swap gives a gateway that does not run the disk that it has lost, in exchange for the one it has.
func (g *Gateway) Swap() error {
	return errors.Join(os.Rename(g.dir, g.dir+".now"), os.Rename(g.dir+".lost", g.dir), os.Rename(g.dir+".now", g.dir+".lost"))
}

// AwaitLog waits until the process that was started last has logged a text.
func (g *Gateway) AwaitLog(text string, timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if g.said(text) {
			return nil
		}
	}
	return fmt.Errorf("the gateway never said %q:\n%s", text, g.Log())
}

// Command runs gateway cluster with the settings of a gateway.
func (g *Gateway) Command(args ...string) (out string, err error) {
	path, err := Binary(g.build)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(path, append([]string{"cluster"}, args...)...)
	cmd.Env = g.env
	said, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("gateway cluster %s: %w: %s", strings.Join(args, " "), err, said)
	}
	return string(said), err
}

// ClusterStatus is what gateway cluster status says.
type ClusterStatus struct {
	Leader  string
	Term    int
	Members []Member

	Rules    int      // which version of the rules is in force
	HeldBack []string `json:"rules_held_back_by"` // addresses of members that do not know the one that another knows
}

// Member is a member as gateway cluster status shows it.
type Member struct {
	ID, Address, State string
	Voter              bool
	Behind             int // entries of the leader's that it has not carried out
}

// ClusterStatus asks a gateway how its cluster is. Members that are away are no error.
func (g *Gateway) ClusterStatus() (status ClusterStatus, err error) {
	out, err := g.Command("status", "-json")
	if at := strings.LastIndex(out, "}"); at >= 0 { // what is wrong is said behind it
		err = json.Unmarshal([]byte(out[:at+1]), &status)
	}
	return status, err
}

// Leader returns which gateway leads, once one does and a majority knows.
func (s *System) Leader(timeout time.Duration) (leader *Gateway, err error) {
	for deadline := time.Now().Add(timeout); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		for _, g := range s.Gateways {
			if !g.Running() {
				continue
			}
			status, statusErr := g.ClusterStatus()
			if err = statusErr; err != nil {
				continue
			}
			for _, m := range status.Members {
				for _, of := range s.Gateways {
					if m.State == "leader" && m.Address == status.Leader && of.node == m.Address {
						return of, nil
					}
				}
			}
		}
	}
	return nil, fmt.Errorf("no gateway leads: %w", err)
}

// Elections returns when gateways began to lead, in order.
func (s *System) Elections() (all []time.Time) {
	for _, g := range s.Gateways {
		g.mu.Lock()
		all = append(all, g.led...)
		g.mu.Unlock()
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}
