package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres/embedded"
	"codehub/internal/testing/e2e/proc"
)

// bench is a running server with its rival, for the figures that need one.
type bench struct {
	options
	server *proc.Server
	data   string // the server's data folder
	api    *apiClient
	bare   *bareDocker
	image  string // the workspace image
	small  string // the test image

	stop []func()
}

// serve starts a server with a data folder of its own and further options.
func serve(ctx context.Context, of options, o proc.Options) (own *bench, err error) {
	own = &bench{options: of, small: env("CODEHUB_TEST_IMAGE", "codehub/testserver:latest"), image: env("CODEHUB_TEST_WORKSPACE_IMAGE", "codehub/workspace:latest")}
	defer func() {
		if err != nil {
			own.close()
		}
	}()
	dir, err := os.MkdirTemp("", "codehub-bench-")
	if err != nil {
		return own, err
	}
	own.stop = append(own.stop, func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the database runs as a different user
		return own, err
	}
	own.data = filepath.Join(dir, "data")
	o.Binary, o.DataDir = of.binary, own.data
	o.Env = append([]string{
		"MAX_RUNNING_PER_USER=0", "MAX_RUNNING_GLOBAL=0", "CODEHUB_MAX_WORKSPACES_PER_USER=0", "CODEHUB_DELETE_GRACE=0s", "CODEHUB_LOG_LEVEL=info",
		"CODEHUB_MAX_CONNECTIONS=100000", "CODEHUB_MAX_REQUESTS_PER_USER=100000"}, o.Env...)
	if own.server, err = proc.New(o); err != nil {
		return own, err
	}
	if own.bare, err = newBareDocker(); err != nil {
		return own, err
	}
	own.stop = append(own.stop, func() {
		own.bare.close()
		own.server.Close()
		if err := proc.Sweep(context.WithoutCancel(ctx), own.bare.api, own.server.Installation()); err != nil {
			fmt.Fprintln(os.Stderr, "bench: clean up in Docker:", err)
		}
		own.bare.api.Close()
	})
	if err := own.bare.withIDE(ctx, env("CODEHUB_TEST_IDE_IMAGE", "codehub/ide:latest"), own.small); err != nil {
		return own, fmt.Errorf("make a volume of the IDE: %w", err)
	}
	sctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := own.server.Start(sctx); err != nil {
		return own, err
	}
	if own.api, err = login(ctx, own.server.URL); err != nil {
		return own, err
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
