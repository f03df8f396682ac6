package planted

// sessionBugs are those of requests for leases that are to hang on a stream, and of clients that have such
// leases: each was there once.
func sessionBugs() []Bug {
	const simulated = "^TestSimulatedStreams$"
	return []Bug{
		{
			Name: "renewal-of-a-replaced-stream", What: "a stream renews a lease whoever has it by now, so that two go on for ever",
			Patches: []Patch{{
				File: "internal/session/keep.go",
				Old:  "TTL: ttl, Stamp: s.ask.Stamp, Epoch: epoch})",
				New:  "TTL: ttl, Epoch: 0 * epoch})",
			}},
			Package: "internal/session", Test: simulated,
		},
		{
			Name: "attached-is-not-compared", What: "a lost message that a stream was replaced is found by nothing but its next renewal",
			Patches: []Patch{{
				File: "internal/session/hear.go",
				Old:  "has && known.Before(since) {\n\t\t\t\t\ts.tell(name)",
				New:  "has && known.IsZero() && known.Before(since) {\n\t\t\t\t\ts.tell(name)",
			}},
			Package: "internal/session", Test: simulated,
		},
		{
			Name: "replaced-before-its-grant-is-told", What: "a stream that is replaced before it is kept does not hear of it",
			Patches: []Patch{
				{File: "internal/session/session.go", Old: "\to.register(s)\n\ts.deaf = o.dog.Hear()\n", New: "\ts.known = map[fencing.Name]time.Time{}\n\ts.deaf = o.dog.Hear()\n"},
				{File: "internal/session/keep.go", Old: "\ts.Told()\n\ts.client,", New: "\ts.Told()\n\ts.of.register(s)\n\ts.client,"},
			},
			Package: "internal/session", Test: "^TestReplacedWhileItsGrantIsConfirmed$",
		},
		{
			Name: "undelivered-stream-keeps-its-lease", What: "who takes a lease over and goes before it is told leaves it hanging on nobody",
			Patches: []Patch{{
				File: "internal/session/session.go",
				Old:  "if s.owes = false; s.ask.Attach || slices.ContainsFunc(",
				New:  "if s.owes = false; slices.ContainsFunc(",
			}},
			Package: "internal/session", Test: simulated,
		},
		{
			Name: "refused-session-keeps-names", What: "a session that is refused while it attaches leaves the names that it has taken over hanging on nobody",
			Patches: []Patch{{
				File: "internal/session/acquire.go",
				Old:  "case gone || !s.unknown:\n",
				New:  "case gone && !gone:\n",
			}},
			Package: "internal/session", Test: simulated,
		},
		{
			Name: "session-that-judges-what-it-was-told-first", What: "names that a session has already count as expired when the last one comes after their TTL",
			Patches: []Patch{{
				File: "internal/session/acquire.go",
				Old:  "if s.ask.Attach || dog.Doubts(out.Asked) || out.Remaining(time.Now()) <= 0 {",
				New:  "if dog.Doubts(out.Asked) && s == nil {",
			}},
			Package: "internal/session", Test: "^TestASessionWaitsForLongerThanItsTTL$",
		},
		{
			Name: "news-lost-beside-a-renewal", What: "a stream that asks again about one name forgets what it hears of another meanwhile",
			Patches: []Patch{{
				File: "internal/session/keep.go",
				Old:  "\t\t_, is := n.told[k.Name]\n",
				New:  "\t\t_, is := n.told[k.Name]\n\t\tis = is && len(pending) == 0\n",
			}},
			Package: "internal/session", Test: "^TestNewsWhileARenewalFails$",
		},
		{
			Name: "shortened-lease-runs-out", What: "a stream does not hear that its lease was shortened at its gateway",
			Patches: []Patch{{
				File: "internal/session/hear.go",
				Old:  "\t\tcase out.Holder.Attached != s.ask.Stamp: // it is another's, or nobody's\n",
				New:  "\t\tcase out != nil:\n\t\t\tcontinue\n\t\tcase out.Holder.Attached != s.ask.Stamp:\n",
			}},
			Package: "internal/session", Test: simulated,
		},
		{
			Name: "set-that-nobody-knows-of-is-replaced", What: "a set that can't ask whether it is the newest tells its client that it is not",
			Patches: []Patch{{
				File: "internal/session/acquire.go",
				Old:  "\t\t\t\terrs[i] = err\n\t\t\t\treturn // nobody",
				New:  "\t\t\t\treturn // nobody",
			}},
			Package: "internal/session", Test: "^TestASetThatCanNotAskWhetherItIsTheNewest$",
		},
		{
			Name: "client-loses-a-session-for-a-name", What: "a client drops all names of a session when one of them was released",
			Patches: []Patch{{
				File: "client/attach_set.go",
				Old:  "return l.claim.stream && e.Reason == ReasonReleased && len(e.Lost) > 0 && l.dropReleased(e.Lost[0])",
				New:  "return e == nil && l.claim.stream",
			}},
			Package: "client", Test: "^TestReleasedByName",
		},
		{
			Name: "client-loses-a-lease-to-itself", What: "a client takes its own request, that a gateway comes to late, for somebody else's",
			Patches: []Patch{{
				File: "client/attach.go",
				Old:  "errors.Is(why, CodeReplaced) && !l.ownRequest(s):",
				New:  "errors.Is(why, CodeReplaced) && (l != nil || !l.ownRequest(s)):",
			}},
			Package: "client", Test: "^TestReplacedByALateRequest$",
		},
		{
			Name: "client-does-not-hear-itself-shorten", What: "a client that shortens a lease goes by its old TTL until it is answered",
			Patches: []Patch{{
				File: "client/renew.go",
				Old:  "\tif ttl < before {\n",
				New:  "\tif ttl < before && ttl < time.Millisecond {\n",
			}, {
				File: "client/renew.go",
				Old:  "\t\tttl = min(ttl, one.ttl)\n",
				New:  "\t\tttl = min(ttl, max(ttl, one.ttl))\n",
			}},
			Package: "client", Test: "^TestRefusedTTLs$",
		},
		{
			Name: "client-misses-events-in-silence", What: "a client whose stream of events breaks off before it was told where that stands goes on without a word",
			Patches: []Patch{{
				File: "client/view.go",
				Old:  "if again && r.lastEvent == \"\" {",
				New:  "if again && r.lastEvent == \"never\" {",
			}},
			Package: "client", Test: "^TestEventsResync$",
		},
	}
}
