// Command bench compares codehub with the same work without it, in one run, and
// prints one line for each figure. Machines are noisy: quote ratios and
// differences, not times.
//
//	go run ./bench                # all figures except kubescale, index and backup-days
//	go run ./bench -only wake,create -n 5
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"codehub/internal/testing/e2e/proc"
)

// options are those of all figures.
type options struct {
	binary     string
	n          int // runs for each median
	workspaces int // of kubescale
}

// figure measures and prints one figure.
type figure struct {
	name    string
	measure func(context.Context, options) error
}

var figures = []figure{
	{"wake", onServer((*bench).wake)}, {"create", onServer((*bench).create)}, {"starts", onServer((*bench).starts)},
	{"images", onServer((*bench).images)}, {"agent", agentCost}, {"kubestart", kubeStart}, {"kubescale", kubeScale},
	{"proxy", onServer((*bench).proxy)}, {"typing", typing}, {"ssh", ssh}, {"idle", onServer((*bench).idle)},
	{"job", onStorage((*storage).jobCost)}, {"small", onStorage((*storage).small)}, {"mixed", onStorage((*storage).mixed)},
	{"files", archiveFiles}, {"index", indexCost}, {"backups", measureBackups}, {"backup-days", measureBackupDays}, {"backup-file", measureBackupFile},
	{"tick", tick}, {"ttl", ttlStatements}, {"leader", leaderFailover}, {"full", onServer((*bench).full)},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	var names []string
	for _, f := range figures {
		if f.name != "kubescale" && f.name != "index" && f.name != "backup-days" {
			names = append(names, f.name)
		}
	}
	var o options
	only := flag.String("only", strings.Join(names, ","), "figures to measure")
	flag.IntVar(&o.n, "n", 10, "number of runs for each median")
	flag.IntVar(&o.workspaces, "workspaces", 5000, "number of workspaces of kubescale; two fifths of them run")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.binary, err = filepath.Abs(env("CODEHUB_TEST_BINARY", "bin/codehub")); err != nil {
		return err
	}
	for name := range strings.SplitSeq(*only, ",") {
		i := slices.IndexFunc(figures, func(f figure) bool { return f.name == name })
		if i < 0 {
			return fmt.Errorf("unknown figure %q", name)
		}
		if err := figures[i].measure(ctx, o); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// onServer measures a figure of a server that it starts.
func onServer(measure func(*bench, context.Context) error) func(context.Context, options) error {
	return func(ctx context.Context, o options) error {
		b, err := serve(ctx, o, proc.Options{})
		if err != nil {
			return err
		}
		defer b.close()
		if err := measure(b, ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, lastLines(b.server.Log(), 30))
		}
		return nil
	}
}

// onStorage measures a figure of archives.
func onStorage(measure func(*storage, context.Context) error) func(context.Context, options) error {
	return func(ctx context.Context, o options) error {
		s, err := newStorage(ctx, o)
		if err != nil {
			return err
		}
		defer s.close(ctx)
		return measure(s, ctx)
	}
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// envInt returns a positive number from the environment.
func envInt(name string, otherwise int) (int, error) {
	n, err := strconv.Atoi(env(name, strconv.Itoa(otherwise)))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q: it must be a number above 0", name, os.Getenv(name))
	}
	return n, nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
