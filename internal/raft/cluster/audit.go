package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/user"

	"fencepost/internal/raft/peer"
)

// auditVerbs are what is asked for that changes the cluster, as the audit calls it.
var auditVerbs = map[string]string{doAdd: "cluster add", doRemove: "cluster remove", doTransfer: "cluster transfer"}

// byItself is who changes the cluster where nobody has asked for it.
const byItself = "the cluster"

// auditRequest writes a line of a change that somebody has asked for; not of one that another node is to make.
func (c *Cluster) auditRequest(ctx context.Context, r request, err error) {
	event, changes := auditVerbs[r.Do]
	var why *refusal
	if !changes || errors.As(err, &why) && why.leader != "" {
		return
	}
	client, certificate := peer.Caller(ctx)
	attrs := []any{slog.String("client", client), slog.String("by", r.By)}
	if certificate != "" {
		attrs = append(attrs, slog.String("certificate", certificate))
	}
	c.audit(event, cmp.Or(r.Node, "any"), err, attrs...)
}

// audit writes a line of a change of the cluster. What the audit has stands in internal/http/audit.go.
func (c *Cluster) audit(event, node string, err error, more ...any) {
	if c.options.Audit == nil {
		return
	}
	attrs := append([]any{slog.String("event", event), slog.String("node", node)}, more...)
	if err != nil {
		attrs = append(attrs, slog.String("code", "refused"), slog.String("reason", err.Error()))
	} else {
		attrs = append(attrs, slog.String("code", "ok"))
	}
	c.options.Audit.Info("audit", slog.Group("audit", attrs...))
}

// whoami is who runs this program, as a label for the audit.
func whoami() string {
	name := "?"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, _ := os.Hostname()
	return name + "@" + cmp.Or(host, "?")
}
