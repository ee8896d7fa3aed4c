// Command testserver stands in for code-server in tests: the same port, the same
// /healthz, the same rule for a WebSocket's Origin and the same session cookie, in
// a static program of a few megabytes that answers within a quarter of a second.
// Beside that it reports what reached it and what it can reach.
//
// Environment:
//
//	HASHED_PASSWORD         the secret that the code-server-session cookie must equal; unset: no check
//	TESTSERVER_ADDR         the address to listen on (":8080")
//	TESTSERVER_HOME         the folder /file and /stat work in ("/home/coder")
//	TESTSERVER_START_DELAY  how long nothing listens yet, as a Go duration
//	TESTSERVER_EXIT         end at once with this exit code
//	TESTSERVER_IGNORE_TERM  "1": SIGTERM is ignored, so that only a forced stop ends it
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	code, err := run(os.Getenv)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testserver:", err)
	}
	os.Exit(code)
}

// run serves until a signal arrives and returns the process's exit code.
func run(getenv func(string) string) (int, error) {
	if v := getenv("TESTSERVER_EXIT"); v != "" {
		code, err := strconv.Atoi(v)
		if err != nil {
			return 2, fmt.Errorf("read TESTSERVER_EXIT: %w", err)
		}
		fmt.Printf("testserver: told to exit with code %d\n", code)
		return code, nil
	}

	// As PID 1 the process has no default handlers: without this a stop would
	// last until the engine's kill.
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for s := range signals {
			if s == syscall.SIGTERM && getenv("TESTSERVER_IGNORE_TERM") == "1" {
				fmt.Println("testserver: ignoring SIGTERM")
				continue
			}
			stop()
			return
		}
	}()

	if v := getenv("TESTSERVER_START_DELAY"); v != "" {
		delay, err := time.ParseDuration(v)
		if err != nil {
			return 2, fmt.Errorf("read TESTSERVER_START_DELAY: %w", err)
		}
		fmt.Printf("testserver: listening in %s\n", delay)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return 0, nil
		}
	}
	return serve(ctx, getenv)
}

func serve(ctx context.Context, getenv func(string) string) (int, error) {
	addr := getenv("TESTSERVER_ADDR")
	if addr == "" {
		addr = ":8080"
	}
	home := getenv("TESTSERVER_HOME")
	if home == "" {
		home = "/home/coder"
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return 1, fmt.Errorf("listen: %w", err)
	}
	fmt.Println("testserver: listening on", listener.Addr())

	server := &http.Server{Handler: newHandler(getenv("HASHED_PASSWORD"), home, os.Exit)}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return 1, fmt.Errorf("serve: %w", err)
	}
	fmt.Println("testserver: stopped")
	return 0, nil
}
