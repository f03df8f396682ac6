package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"fencepost/internal/auth"
	lockhttp "fencepost/internal/http"
	"fencepost/internal/lines"
	"fencepost/internal/observe"
	"fencepost/internal/variables"
	"fencepost/internal/watchdog"
	"fencepost/web"
)

// version is set by the Makefile's build.
var version = "dev"

// build names this build in a log, which tells by it who has decided what. Builds without a version of their own are told apart by their files.
func build() string {
	if version != "dev" && !strings.HasSuffix(version, "-dirty") {
		return version
	}
	path, err := os.Executable()
	if err != nil {
		return version
	}
	file, err := os.Open(path)
	if err != nil {
		return version
	}
	defer file.Close()
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if _, err := io.Copy(sum, file); err != nil {
		return version
	}
	return fmt.Sprintf("%s-%08x", version, sum.Sum32())
}

// run is the program: it returns nil after a clean end. What is logged while it serves goes to out.
func run(ctx context.Context, args []string, stdout, stderr io.Writer, out *lines.Queue) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	showVersion := flags.Bool("version", false, "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return printHelp(stdout)
	} else if err != nil {
		return usageError{fmt.Errorf("%w; see gateway -help", err)}
	}
	if *showVersion {
		_, err := fmt.Fprintf(stdout, "fencepost %s %s\n", version, runtime.Version())
		return err
	}
	switch flags.Arg(0) {
	case "":
	case "help":
		return printHelp(stdout)
	case "healthcheck":
		return healthcheck(ctx)
	case "doctor":
		return doctor(ctx, flags.Args()[1:], stdout)
	case "cluster":
		return clusterCommand(ctx, flags.Args()[1:], stdout)
	case "store":
		return storeCommand(ctx, flags.Args()[1:], stdout)
	case "restored":
		return restored(flags.Args()[1:], stdout)
	case "keygen":
		return keygen(flags.Args()[1:], stdout, stderr)
	default:
		meant := cmp.Or(map[string]string{"serve": "gateway alone", "version": "-version"}[flags.Arg(0)],
			variables.Nearest(flags.Arg(0), []string{"help", "healthcheck", "doctor", "cluster", "store", "restored", "keygen"}))
		if meant != "" {
			meant = "; did you mean " + meant + "?"
		}
		return usageError{fmt.Errorf("there is no command %q%s; see gateway -help", flags.Arg(0), meant)}
	}
	cfg, err := loadConfig()
	if err != nil {
		return err
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else it would end this process when the log's reader is gone
	return serve(ctx, cfg, cfg.logTo(out))
}

// serve wires the gateway, serves until ctx ends or the store fails, and drains.
func serve(ctx context.Context, cfg config, logs logs) (err error) {
	log, audit := logs.log, logs.audit
	tuneCollector()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	observe.RegisterBuild(reg, version, runtime.Version(), cfg.storeKind())
	observe.RegisterLog(reg, logs.lost)

	watched := &files{log: log, audit: audit, state: observe.NewFiles(reg)}
	defer watched.stop()
	secured, err := watchSecurity(cfg, watched, log)
	if err != nil {
		return err
	}
	watched.start()

	opened, err := openStore(ctx, cfg, secured, log, false)
	if err != nil {
		return err
	}
	defer func() { err = opened.end(err) }()
	if len(opened.nodes) > 0 {
		observe.RegisterPool(reg, opened.pool)
	}
	if len(opened.nodes) > 0 || opened.database != nil {
		observe.RegisterLosses(reg, opened.losses)
	}
	if opened.database != nil {
		observe.RegisterTurnsEnded(reg, opened.database.TurnsEnded)
	}
	if opened.panics != nil {
		observe.RegisterPanics(reg, opened.panics)
	}
	if opened.cluster != nil {
		observe.RegisterCluster(reg, clusterMetrics(opened.cluster))
		opened.cluster.TellLog(logs.condition)
	}
	store := observe.Wrap(opened, reg)
	traces, err := newTracerProvider(ctx, log)
	if err != nil {
		return err
	}
	if traces != nil {
		defer traces.end(log)
		store.Trace(cfg.storeKind(), traces)
	}
	dog := watchdog.New(store, watchdog.Options{
		Logger: log, MaxSkew: lateBy(cfg), MaxWaiters: cfg.MaxWaiters, MaxSubscriptions: cfg.MaxStreams,
		Strict: cfg.Strict, Examine: examineEvery(cfg), Observer: observe.NewObserver(reg),
	})
	if cfg.Strict {
		if err := demand(ctx, dog); err != nil {
			return err
		}
	}
	dog.Start()
	defer dog.Stop()
	if opened.cluster != nil {
		opened.cluster.OnChange(dog.Reexamine)
	}

	options := lockhttp.Options{
		Watchdog: dog, Alive: opened.alive, Bounds: cfg.bounds(), AllowedHosts: cfg.hosts(cfg.ListenAddr), Keys: secured.keys,
		MaxWaitersPerClient: cfg.MaxWaitersPerClient, MaxStreamsPerClient: cfg.MaxStreamsPerClient,
		MaxRequestRatePerPrincipal: cfg.MaxRequestRatePerPrincipal, MaxRequestsPerPrincipal: cfg.MaxRequestsPerPrincipal,
		Page: web.Files, StoreKind: cfg.storeKind(), Version: version,
		Gatherer: gathererFor(cfg, reg), Registerer: reg, Logger: log, Audit: audit, LogFinding: logs.finding, ReserveAudit: logs.reserve,
	}
	if traces != nil {
		options.TracerProvider = traces
	}
	api := lockhttp.New(options)
	server := lockhttp.NewHTTPServer(api.Handler(), log)
	listener, err := net.Listen("tcp", cfg.ListenAddr)
	if err != nil {
		return cantListen("FENCEPOST_LISTEN_ADDR", cfg.ListenAddr, err)
	}
	most, _ := cfg.maxConnections(openFiles()) // validated before
	listener = lockhttp.LimitConnections(server, listener, lockhttp.ConnectionOptions{
		Most: most, MostPerClient: cfg.MaxConnectionsPerClient, RatePerClient: cfg.MaxConnectionRatePerClient,
		Keys: secured.keys != nil, TLS: secured.server, Alive: opened.alive, Registerer: reg, Logger: log,
	})
	serving := make(chan error, 2)
	go func() { serving <- secured.serve(server, listener) }()
	if cfg.AdminAddr != "" {
		admin, err := serveAdmin(cfg, secured, reg, serving, log, audit)
		if err != nil {
			return errors.Join(err, server.Close())
		}
		defer admin.Close()
	}
	log.Info("serving", "address", listener.Addr().String(), "store", cfg.storeKind(), "version", version)
	secured.warn(cfg, log)

	err = opened.await(ctx.Done(), serving)
	api.Drain()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.DrainTimeout)
	defer cancel()
	if opened.cluster != nil {
		opened.cluster.StepDown(drain)
	}
	if err == nil {
		log.Info("shutting down", "drain_delay", cfg.DrainDelay.String(), "drain_timeout", cfg.DrainTimeout.String())
		noticed, cancel := context.WithTimeout(drain, cfg.DrainDelay)
		defer cancel()
		err = opened.await(noticed.Done(), serving)
	}
	if shutdownErr := server.Shutdown(drain); shutdownErr != nil {
		log.Warn("requests were cut off: they took longer than the drain timeout", "error", shutdownErr)
		err = errors.Join(err, server.Close())
	}
	return err
}

// await waits until done, or returns why serving can't go on.
func (s *openedStore) await(done <-chan struct{}, serving <-chan error) error {
	select {
	case <-done:
		return nil
	case err := <-serving:
		return fmt.Errorf("serving failed: %w", err)
	case <-s.failed:
		return s.cause()
	}
}

// gathererFor returns what /metrics of the main address shows: nothing when
// there is an admin address for it.
func gathererFor(cfg config, reg *prometheus.Registry) prometheus.Gatherer {
	if cfg.AdminAddr != "" {
		return nil
	}
	return reg
}

// cantListen says why an address can't be served, and what to change.
func cantListen(setting, addr string, err error) error {
	_, port, _ := net.SplitHostPort(addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s: %s is in use by another process, perhaps another gateway (ss -ltnp 'sport = :%s' says which); stop it, or set %s to another port", setting, addr, port, setting)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s: %s may not be used by this user; ports below 1024 need a privilege: set %s to another port", setting, addr, setting)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s: %s is not an address of this machine", setting, addr)
	}
	return fmt.Errorf("%s: %w", setting, err)
}

// serveAdmin serves metrics and profiles on an address of their own, to the same
// Hosts and keys as the main one, over TLS as that is.
func serveAdmin(cfg config, secured security, reg *prometheus.Registry, serving chan<- error, log, audit *slog.Logger) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	listener, err := net.Listen("tcp", cfg.AdminAddr)
	if err != nil {
		return nil, cantListen("FENCEPOST_ADMIN_ADDR", cfg.AdminAddr, err)
	}
	guarded := lockhttp.OnlyKeys(secured.keys, audit, func(r *http.Request) auth.Scope {
		if r.URL.Path == "/metrics" {
			return auth.Read
		}
		return auth.Admin // a profile shows what is in memory, and takes time
	}, mux)
	server := lockhttp.NewHTTPServer(lockhttp.OnlyHosts(cfg.hosts(cfg.AdminAddr), log, guarded), log)
	server.WriteTimeout = 0 // a profile takes as long as it was asked to
	listener = lockhttp.LimitConnections(server, listener, lockhttp.ConnectionOptions{Most: adminConnections, TLS: secured.server, Logger: log})
	go func() { serving <- secured.serve(server, listener) }()
	log.Info("serving metrics and profiles", "address", listener.Addr().String())
	return server, nil
}
