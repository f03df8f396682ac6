package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"fencepost/internal/raft/cluster"
	"fencepost/internal/raft/peer"
)

// clusterTimeout bounds a change of the cluster: a node that is added has to get all entries.
const clusterTimeout = 5 * time.Minute

const clusterHelp = `Usage: gateway cluster status|add|remove|transfer [-json] [-timeout 5m] [NODE]

Shows or changes the cluster of FENCEPOST_STORE=raft://...; run it with the settings of one of its
gateways. NODE is the address of a node, as in the list, or its id.

  status             show the members; exits with 1 unless every member can be reached, follows the
                     leader and has a vote, and no disk is slow
  add NODE           add the node at an address that no member has; it must run already, without
                     data. Returns when the node has its vote
  remove NODE        remove a member; its data can't be used in the cluster again. Refused unless
                     a majority of the members that stay follow the leader; succeeds if NODE is
                     not a member
  transfer [NODE]    make NODE, or any other member, the leader

  -json              print the members as JSON
  -timeout           longest time to wait

It exits with 0 on success, 1 on failure, and 2 if the command line or the settings are wrong.
`

// clusterCommand asks the cluster of the settings how it is, or changes it.
func clusterCommand(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "")
	timeout := flags.Duration("timeout", clusterTimeout, "")
	verb := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		verb, args = args[0], args[1:]
	}
	err := flags.Parse(args)
	node := flags.Arg(0)
	if err == nil && flags.NArg() > 1 { // flags may stand behind the node
		err = flags.Parse(flags.Args()[1:])
	}
	switch {
	case errors.Is(err, flag.ErrHelp) || verb == "help":
		_, err := fmt.Fprint(out, clusterHelp)
		return err
	case err == nil && verb == "":
		err = errors.New("a command is missing: status, add, remove or transfer")
	case err == nil && !slices.Contains([]string{"status", "add", "remove", "transfer"}, verb):
		err = fmt.Errorf("there is no command %q", verb)
	case err == nil && (flags.NArg() > 0 && node != flags.Arg(0) || node != "" && verb == "status"):
		err = errors.New("there is an unexpected argument")
	case err == nil && node == "" && (verb == "add" || verb == "remove"):
		err = errors.New("the node is missing")
	case err == nil && node != "" && !isID(node):
		err = peer.CheckAddr(withClusterPort(node))
	}
	if err != nil {
		return usageError{fmt.Errorf("cluster: %w; see gateway cluster -help", err)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	if cfg.storeKind() != kindRaft {
		return usageError{errors.New("cluster: FENCEPOST_STORE is not raft://, so this gateway is not in a cluster")}
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	command, err := openCommand(ctx, cfg)
	if err != nil {
		return err
	}
	defer command.Close()
	var status cluster.Status
	switch verb {
	case "status":
		status, err = command.Status(ctx)
	case "add":
		status, err = command.Add(ctx, withClusterPort(node))
	case "remove":
		status, err = command.Remove(ctx, nodeOf(node))
	case "transfer":
		status, err = command.Transfer(ctx, nodeOf(node))
	}
	if err != nil {
		return fmt.Errorf("cluster %s: %w", verb, err)
	}
	if err := printStatus(out, status, *asJSON); err != nil {
		return err
	}
	if verb == "status" {
		return status.Whole()
	}
	return nil
}

// isID reports whether a node is named by its id.
func isID(node string) bool { return len(node) == 32 && !strings.ContainsAny(node, ".:") }

// nodeOf returns a node as it was named: an id has no port.
func nodeOf(node string) string {
	if isID(node) || node == "" {
		return node
	}
	return withClusterPort(node)
}

// openCommand returns who asks the node of these settings first, then the others.
func openCommand(ctx context.Context, cfg config) (*cluster.Command, error) {
	nodes, err := clusterNodes(cfg.Store)
	if err != nil {
		return nil, err
	}
	if own, err := cfg.clusterAddr(ctx); err == nil { // else any will do
		nodes = append([]string{own}, slices.DeleteFunc(nodes, func(addr string) bool { return addr == own })...)
	}
	credentials, err := watchClusterTLS(cfg, &files{log: slog.New(newRemarks())}, slog.New(newRemarks()))
	if err != nil {
		return nil, err
	}
	return cluster.NewCommand(nodes, credentials)
}

func printStatus(out io.Writer, status cluster.Status, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(status)
	}
	tabs := tabwriter.NewWriter(out, 1, 0, 2, ' ', 0)
	fmt.Fprintln(tabs, "NODE\tSTATE\tVOTE\tBEHIND\tLAST CONTACT\tDISK\tRULES\tVERSION\tID")
	for _, m := range status.Members {
		vote, behind, contact, disk := "yes", "-", "-", "-"
		if !m.Voter {
			vote = "not yet"
		}
		if m.Reached {
			behind = fmt.Sprint(m.Behind)
		}
		if m.LastContact >= 0 && m.State != "leader" {
			contact = fmt.Sprintf("%d ms", m.LastContact)
		}
		if m.DiskTime >= 0 {
			disk = fmt.Sprintf("%d ms", m.DiskTime)
		}
		rules := "-"
		if m.KnowsRules > 0 {
			rules = fmt.Sprint(m.KnowsRules)
		}
		fmt.Fprintf(tabs, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Addr, m.State, vote, behind, contact, disk, rules, m.Version, m.ID)
	}
	if err := tabs.Flush(); err != nil {
		return err
	}
	var err error
	for _, m := range status.Members {
		if m.LogHangs {
			_, err = fmt.Fprintf(out, "the log of %s can't be written: %s lost\n", m.Addr, plural(int(m.LogLost), "line was", "lines were"))
		}
	}
	if status.Rules > 0 {
		_, err = fmt.Fprintln(out, rulesFinding(status.Rules, status.HeldBack).Detail)
	}
	if status.MayFail >= 0 && status.Condition == "" {
		_, err = fmt.Fprintf(out, "%s leads in term %d; %s may fail\n", status.Leader, status.Term, plural(status.MayFail, "more member", "more members"))
	}
	return err
}
