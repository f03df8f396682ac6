package planted

import (
	"time"

	"fencepost/verify/history"
	"fencepost/verify/system"
)

// cluster is a history on a cluster of three gateways.
func cluster(mix history.Mix) history.Config {
	return history.Config{Options: system.Options{Store: system.Raft}, Clients: 16, Names: 4, Operations: 6000, Mix: mix}
}

// raftBugs are those of a cluster of gateways.
func raftBugs() []Bug {
	back := []Patch{
		{
			File: "internal/raft/lead.go",
			Old:  "	base := look(s.fsm, (*machine.Machine).Now)\n",
			New:  "	base := look(s.fsm, (*machine.Machine).Now)\n	if base > 0 {\n		base = base.Add(-time.Minute)\n	}\n",
		},
		{File: "internal/machine/machine.go", Old: "	if m.follows {\n		return now\n", New: "	if true {\n		return now\n"},
	}
	wall := []Patch{{File: "internal/raft/lead.go", Old: "	if base == 0 {", New: "	if base = max(base, fencing.InstantOf(wall)); base == 0 {"}}
	// As long as all clocks are right, to follow them harms nobody.
	apart := Patch{
		File: "internal/raft/options.go", Old: "		wall, monotonic := now, now.Sub(start)\n",
		New: "		wall, monotonic := now.Add(time.Duration(start.UnixNano()%int64(time.Hour))), now.Sub(start)\n",
	}
	reads := []Patch{{
		File: "internal/raft/ask.go", Old: "	\"fencepost/internal/fencing\"\n", New: "	\"fencepost/internal/fencing\"\n	\"fencepost/internal/machine\"\n",
	}, {
		File: "internal/raft/ask.go",
		Old:  "	address, term, ok := s.leader()\n	if !ok || address == s.self.Address {\n		return nil, errNoLeader\n",
		New: "	if m.Errand == errandLook {\n" +
			"		op, _ := machine.DecodeOp(m.Op)\n" +
			"		out := look(s.fsm, func(of *machine.Machine) fencing.Outcome { return of.Look(op, 0, m.Batch.Guard()) })\n" +
			"		return &answer{Verdict: done, Outcomes: []fencing.Outcome{out}}, nil\n	}\n" +
			"	address, term, ok := s.leader()\n	if !ok || address == s.self.Address {\n		return nil, errNoLeader\n",
	}}
	return []Bug{
		{
			Name: "new-leader-goes-back", What: "the time of a new leader begins a minute before the greatest in the log",
			Patches: back,
			History: failing(cluster(history.Mix{Plain: 3, Wait: 1, Late: 1}), 2000, 4*time.Second, "transfer"), Promise: "P4",
		},
		{
			Name: "new-leader-follows-wall-clock", What: "a new leader goes on from the wall clock, and those of the nodes are apart by up to an hour",
			Patches: append(wall[:1:1], apart),
			History: failing(cluster(history.Mix{Plain: 2, Wait: 1, Late: 2}), 6000, 2*time.Second, "leader-kill"), Promise: "order",
		},
		{
			Name: "new-leader-follows-wall-clock-of-a-test", What: "the same, with clocks that are hours apart",
			Patches: wall,
			Package: "internal/raft", Test: "^TestTimeGoesOnWithANewLeader$",
		},
		{
			Name: "signs-of-life-of-the-leader-alone", What: "that a gateway has said that it lives is known to the node that led then, and to no other",
			Patches: []Patch{{
				File: "internal/machine/machine.go", Old: "		case kind == kindBeat:\n",
				New: "		case kind == kindBeat && !beats:\n		case kind == kindBeat:\n",
			}},
			Package: "internal/raft", Test: "^TestSystemConformanceWithAnotherLeaderEachTime$/^three_nodes$/^gateway_",
		},
		{
			Name: "answer-before-commit", What: "the leader answers what it has appended, before any other node has it",
			Patches: []Patch{
				{File: "internal/raft/lead.go", Old: "	err      error // it was not made\n", New: "	err      error\n	early    *applied\n"},
				{
					File: "internal/raft/lead.go", Old: "		p.future = s.raft.Apply(data, 0)\n",
					New: "		p.early = s.fsm.Apply(&raft.Log{Index: s.raft.LastIndex() + 1, Term: l.term, Data: data}).(*applied)\n" +
						"		didMu.Lock()\n		did[string(data)] = true\n		didMu.Unlock()\n		p.future = s.raft.Apply(data, 0)\n",
				},
				{
					File: "internal/raft/lead.go", Old: "	switch err := s.settled(p.future); {\n",
					New: "	if a := p.early; !a.stale && len(a.results) == len(p.requests) {\n		return a, nil\n	}\n	switch err := s.settled(p.future); {\n",
				},
				{File: "internal/raft/fsm.go", Old: "// applied is what an entry came to", New: "var (\n	didMu sync.Mutex\n	did   = map[string]bool{}\n)\n\n// applied is what an entry came to"},
				{
					File: "internal/raft/fsm.go", Old: "	e, err := machine.Decode(l.Data)\n",
					New: "	didMu.Lock()\n	again := did[string(l.Data)]\n	delete(did, string(l.Data))\n	didMu.Unlock()\n" +
						"	if again {\n		m.reached(l.Index)\n		return &applied{stale: true}\n	}\n" +
						"	e, err := machine.Decode(l.Data)\n",
				},
			},
			History: failing(cluster(history.Mix{Plain: 2, Wait: 3}), 8000, time.Second, "leader-cut", "leader-kill"), Promise: "order",
		},
		{
			Name: "follower-answers-reads", What: "a node that does not lead answers who looks from its own state",
			Patches: reads,
			History: failing(cluster(history.Mix{Plain: 2, Wait: 3}), 6000, time.Second, "way-cut"), Promise: "order",
		},
		{
			Name: "old-leader-answers-reads", What: "who believes to lead answers who looks from its own state, and asks nobody",
			Patches: []Patch{
				{File: "internal/raft/read.go", Old: "	if err := s.verify(ctx, l); err != nil {\n		return nil, err\n	}\n", New: ""},
				{File: "internal/raft/read.go", Old: "	now, err := s.readingTime(ctx, l)\n", New: "	now, err := l.clock(), error(nil)\n"},
			},
			History: failing(cluster(history.Mix{Plain: 2, Wait: 3}), 8000, time.Second, "leader-stop"), Promise: "order",
		},
		{
			Name: "cut-off-leader-answers-reads", What: "a leader that was cut off answers who looks from its own state",
			Patches: reads,
			Package: "internal/raft", Test: "^TestALeaderThatIsCutOff$",
		},
	}
}
