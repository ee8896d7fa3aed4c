// Command bench compares codehub with the same work without it, in one run, and
// prints one line for each figure. Machines are noisy: quote ratios and
// differences, not times.
//
//	go run ./bench                # all figures
//	go run ./bench -only wake,create -n 5
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"codehub/internal/e2e/proc"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	only := flag.String("only", "wake,agent,images,create,starts,idle,proxy,transfer,websocket,idlesockets,abandoned,routes,https,typing,page,ssh,kubestart,job,small,mixed,tick,leader,ttl,full,events,streams,activity", "figures to measure")
	n := flag.Int("n", 10, "number of runs for each median")
	workspaces := flag.Int("workspaces", 5000, "number of workspaces of kubescale; two fifths of them run")
	idle := flag.Duration("idle", 5*time.Minute, "duration for which the idle server is measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	binary, err := filepath.Abs(env("CODEHUB_TEST_BINARY", "bin/codehub"))
	if err != nil {
		return err
	}
	var ofServer, ofArchives, ofDatabase []string
	alone, byAgent, inKubernetes, manyInKubernetes := false, false, false, false
	for _, name := range strings.Split(*only, ",") {
		switch {
		case serverFigures[name] != nil:
			ofServer = append(ofServer, name)
		case archiveFigures[name] != nil:
			ofArchives = append(ofArchives, name)
		case databaseFigures[name] != nil:
			ofDatabase = append(ofDatabase, name)
		case name == "agent":
			byAgent = true
		case name == "kubestart":
			inKubernetes = true
		case name == "kubescale":
			manyInKubernetes = true
		case name == "full":
			alone = true
		default:
			return fmt.Errorf("unknown figure %q", name)
		}
	}
	if err := measureServer(ctx, binary, *n, *idle, ofServer); err != nil {
		return err
	}
	if byAgent {
		if err := agentCost(ctx, binary, *n); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
	}
	if inKubernetes {
		if err := kubeStart(ctx, binary, *n); err != nil {
			return fmt.Errorf("kubestart: %w", err)
		}
	}
	if manyInKubernetes {
		if err := kubeScale(ctx, binary, *workspaces); err != nil {
			return fmt.Errorf("kubescale: %w", err)
		}
	}
	if err := measureArchives(ctx, binary, *n, ofArchives); err != nil {
		return err
	}
	for _, name := range ofDatabase {
		if err := databaseFigures[name](ctx, *n); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if alone {
		if err := fullServer(ctx, binary); err != nil {
			return fmt.Errorf("full: %w", err)
		}
	}
	return nil
}

var serverFigures = map[string]func(*bench, context.Context) error{
	"wake": (*bench).wake, "images": (*bench).images, "create": (*bench).create, "starts": (*bench).starts, "idle": (*bench).idleServer, "proxy": (*bench).proxy,
	"transfer": (*bench).transfer, "websocket": (*bench).webSocket, "idlesockets": (*bench).idleWebSockets, "abandoned": (*bench).abandonedWebSockets, "routes": (*bench).routes, "https": (*bench).https, "typing": (*bench).typing, "page": (*bench).page, "ssh": (*bench).ssh,
}

var archiveFigures = map[string]func(*storage, context.Context) error{
	"job": (*storage).jobCost, "small": (*storage).small, "mixed": (*storage).mixed,
}

// databaseFigures need no Docker.
var databaseFigures = map[string]func(ctx context.Context, n int) error{
	"tick": tick, "leader": leaderFailover, "ttl": ttlStatements, "events": events, "streams": streamMemory, "activity": activityCost,
}

func measureArchives(ctx context.Context, binary string, n int, names []string) error {
	if len(names) == 0 {
		return nil
	}
	s, err := newStorage(ctx, binary, n)
	if err != nil {
		return fmt.Errorf("archives: %w", err)
	}
	defer s.close(ctx)
	for _, name := range names {
		if err := archiveFigures[name](s, ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func measureServer(ctx context.Context, binary string, n int, idle time.Duration, names []string) error {
	if len(names) == 0 {
		return nil
	}
	descriptors, err := raiseDescriptors(3 * mostIdleSockets)
	if err != nil {
		return err
	}
	b, err := (&bench{
		binary: binary, n: n, idle: idle, sockets: idleSockets(descriptors),
		small: env("CODEHUB_TEST_IMAGE", "codehub/testserver:latest"),
		image: env("CODEHUB_TEST_WORKSPACE_IMAGE", "codehub/workspace:latest"),
		slim:  env("CODEHUB_TEST_SLIM_IMAGE", "codehub/workspace-slim:latest"),
	}).serve(ctx, proc.Options{})
	if err != nil {
		return err
	}
	defer b.close()
	for _, name := range names {
		if err := serverFigures[name](b, ctx); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, lastLines(b.server.Log(), 30))
		}
	}
	return nil
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// envInt returns a positive number from the environment.
func envInt(name string, otherwise int) (int, error) {
	v := os.Getenv(name)
	if v == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s is %q: it must be a number above 0", name, v)
	}
	return n, nil
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
