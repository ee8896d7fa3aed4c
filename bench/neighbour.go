package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"codehub/internal/testing/e2e/proc"
)

// neighbour is another user, whose workspace is a test server.
type neighbour struct {
	ours   *proxied // their workspace through codehub
	direct *proxied // and past it
	dir    string
}

// neighbour creates another user with a workspace.
func (b *bench) neighbour(ctx context.Context) (*neighbour, error) {
	id, err := b.api.create(ctx, "bench-neighbour", b.small)
	if err != nil {
		return nil, err
	}
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	const name = "neighbour"
	_, err = conn.Exec(ctx, `INSERT INTO users (id, username, username_key, password_hash)
		SELECT gen_random_uuid(), $1, $1, password_hash FROM users WHERE username = 'admin'`, name)
	if err == nil {
		_, err = conn.Exec(ctx, `UPDATE workspaces SET owner_user_id = (SELECT id FROM users WHERE username = $2) WHERE id = $1`, id, name)
	}
	if err != nil {
		return nil, err
	}
	user, err := logIn(ctx, b.server, name, proc.AdminPassword)
	if err != nil {
		return nil, err
	}
	n := &neighbour{}
	if n.ours, err = user.open(ctx, id); err != nil {
		return nil, err
	}
	if n.direct, err = b.bare.reach(ctx, id); err != nil {
		return nil, err
	}
	if n.dir, err = os.MkdirTemp("", "codehub-bench-typing-"); err != nil {
		return nil, err
	}
	size, err := transferSize()
	if err != nil {
		return nil, err
	}
	f, err := os.Create(n.upload())
	if err != nil {
		return nil, err
	}
	return n, errors.Join(f.Truncate(int64(size)), f.Close())
}

// transferSize returns the bytes of one transfer.
func transferSize() (int, error) {
	mib, err := envInt("CODEHUB_BENCH_TRANSFER_MIB", 1024)
	return mib << 20, err
}

// upload is a file of zeros, which is sparse.
func (n *neighbour) upload() string { return filepath.Join(n.dir, "upload") }

// transfer downloads and uploads without a break, both at the same time, until ctx ends.
// The clients have the lowest priority: other people's computers take no processor time here.
func (n *neighbour) transfer(ctx context.Context, to *proxied) error {
	size, err := transferSize()
	if err != nil {
		return err
	}
	errs := make([]error, 2)
	var g sync.WaitGroup
	for i, args := range [][]string{
		{to.url(fmt.Sprintf("/bytes?n=%d", size))},
		{"--upload-file", n.upload(), "--header", "Expect:", to.url("/bytes")},
	} {
		g.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				options := []string{"-n", "19", "curl", "--silent", "--show-error", "--fail", "--output", "/dev/null", "--header", "Host: " + to.host}
				for _, h := range to.headers {
					options = append(options, "--header", h)
				}
				out, err := exec.CommandContext(ctx, "nice", append(options, args...)...).CombinedOutput()
				if err != nil && ctx.Err() == nil {
					errs[i] = fmt.Errorf("curl: %w: %s", err, out)
				}
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

var opened = regexp.MustCompile(`requests: \d+ total, \d+ started, (\d+) done`)

// flood opens 5,000 connections at once, sends a request on each, closes them and begins
// again, until ctx ends. A busy machine may not finish the first time, so a few connections
// show beforehand that requests are served.
func (n *neighbour) flood(ctx context.Context, to *proxied) error {
	for connections := 10; ; connections = 5000 {
		count := strconv.Itoa(connections)
		args := []string{"-n", "19", "h2load", "--h1", "--clients", count, "--requests", count, "--connect-to", to.address}
		for _, h := range to.headers {
			args = append(args, "--header", h)
		}
		out, err := exec.CommandContext(ctx, "nice", append(args, "http://"+to.host+"/healthz")...).CombinedOutput()
		if ctx.Err() != nil {
			return nil
		}
		if m := opened.FindSubmatch(out); err != nil || m == nil || connections == 10 && string(m[1]) != count {
			return fmt.Errorf("h2load: %v: %s", err, out)
		}
	}
}

// raiseDescriptors raises the limit of file descriptors as far as the system allows, for this
// process and those that it starts.
func raiseDescriptors() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = l.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}
