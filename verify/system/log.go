package system

// HangLog stops reading what the gateway logs: its standard error is a pipe then that fills up, as behind a collector that
// hangs. The end of the process is noticed nevertheless.
func (g *Gateway) HangLog() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hung == nil {
		g.hung = make(chan struct{})
	}
}

// ReadLog has it be read again.
func (g *Gateway) ReadLog() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.hung != nil {
		close(g.hung)
		g.hung = nil
	}
}

// awaitReader returns when the log is read.
func (g *Gateway) awaitReader() {
	if hung := g.logHangs(); hung != nil {
		<-hung
	}
}

// logHangs returns what is closed when the log is read again; nil: it is.
func (g *Gateway) logHangs() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hung
}
