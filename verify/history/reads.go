package history

// holdersShown is how many holders a look shows at most (api/openapi.yaml).
const holdersShown = 100

// reads adds the looks at the name, and the verdicts on its tokens. One program asks for both, one
// after the other: so at any moment at most one of them is open, and the search has no more than
// twice as many sets of moves to try. And it has sooner done with what is wrong: whether a lease has
// ended that may have is told by the next look.
func (p *projection) reads() {
	client := 0
	for i := range p.calls {
		client = max(client, p.calls[i].Client+1)
	}
	for i := range p.all.Looks {
		l := &p.all.Looks[i]
		if l.Name != p.name {
			continue
		}
		m := move{what: moveLook, whole: len(l.Holders) < holdersShown && !p.resurrects(l.Sent, l.Done), known: forever, read: l}
		if p.rules.Unheard {
			m.known = l.Sent
		}
		for _, s := range l.Holders {
			if _, told := p.tokens[s.Token]; told {
				m.shown = append(m.shown, s)
			}
		}
		p.add(client, l.Sent, l.Done, m)
	}
	for i := range p.all.Verdicts {
		j := &p.all.Verdicts[i]
		told, known := p.tokens[j.Token]
		if j.Name != p.name {
			continue
		}
		m := move{what: moveVerdict, token: j.Token, verdict: j.Verdict, issued: j.Issued, read: j}
		_, m.told = p.tokens[j.Issued]
		// A provisional lease counts as over while its gateway seems dead, and may yet be told.
		m.guess = !known || j.Verdict != "live" && (j.Sent < told || p.resurrects(j.Sent, j.Done))
		p.add(client, j.Sent, j.Done, m)
	}
}

// resurrects reports whether a lease that is over then may be there again after a restart of the
// gateway, which has the whole TTL of each lease begin anew: that its time is over is on disk only
// when the gateway has attended to that.
func (p *projection) resurrects(from, until Time) bool {
	for _, t := range p.all.Troubles {
		if p.rules.RestartRenews && t.Restart && from <= t.Until && until >= t.From-p.rules.Slack {
			return true
		}
	}
	return false
}
