package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/e2e/proc"
	"codehub/internal/postgres/embedded"
)

// bench has the server and options for the figures of a running server.
type bench struct {
	server *proc.Server
	data   string // the server's data folder
	api    *apiClient
	bare   *bareDocker
	binary string
	image  string // the workspace image
	slim   string // the slim one
	small  string // the test image
	n      int
	idle   time.Duration

	sockets   int    // open at a time for the figures of idle ones
	cert, key string // files, if the server serves https

	stop []func()
}

// serve starts a server with a data folder of its own and further options, and returns a
// copy of b with it.
func (b *bench) serve(ctx context.Context, o proc.Options) (_ *bench, err error) {
	c := *b
	own := &c
	own.stop = nil
	defer func() {
		if err != nil {
			own.close()
		}
	}()
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return nil, err
	}
	own.stop = append(own.stop, func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return nil, err
	}
	own.data = filepath.Join(dir, "data")
	o.Binary, o.DataDir = b.binary, own.data
	o.Env = append([]string{
		"MAX_RUNNING_PER_USER=0", "MAX_RUNNING_GLOBAL=0", "CODEHUB_MAX_WORKSPACES_PER_USER=0", "CODEHUB_DELETE_GRACE=0s", "CODEHUB_LOG_LEVEL=info",
		"CODEHUB_MAX_CONNECTIONS=100000", "CODEHUB_MAX_REQUESTS_PER_USER=100000"}, o.Env...)
	if own.server, err = proc.New(o); err != nil {
		return nil, err
	}
	if own.bare, err = newBareDocker(); err != nil {
		return nil, err
	}
	own.stop = append(own.stop, func() {
		own.bare.close()
		own.server.Close()
		if err := proc.Sweep(context.WithoutCancel(ctx), own.bare.api, own.server.Installation()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up in Docker:", err)
		}
		own.bare.api.Close()
	})
	if err := own.bare.withIDE(ctx, env("CODEHUB_TEST_IDE_IMAGE", "codehub/ide:latest"), b.small); err != nil {
		return nil, fmt.Errorf("make a volume of the IDE: %w", err)
	}
	sctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := own.server.Start(sctx); err != nil {
		return nil, err
	}
	if own.api, err = login(ctx, own.server.URL); err != nil {
		return nil, err
	}
	own.stop = append(own.stop, own.api.removeAll)
	return own, nil
}

// close stops the server and removes what it left in Docker.
func (b *bench) close() {
	for i := len(b.stop) - 1; i >= 0; i-- {
		b.stop[i]()
	}
}

// connect connects with the server's own database.
func (b *bench) connect(ctx context.Context) (*pgx.Conn, error) {
	address, err := embedded.Find(ctx, b.data)
	if err != nil {
		return nil, err
	}
	return pgx.Connect(ctx, address)
}
