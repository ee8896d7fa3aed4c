package pgtest

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/postgres/embedded"
)

// Own is a PostgreSQL server of one test, which the test may stop and start. It is
// removed with its files at the end of the test or of the process.
type Own struct {
	testing.TB
	pg  *embedded.Server
	dir string
}

// StartOwn starts a server with an empty database.
func StartOwn(t testing.TB) *Own {
	t.Helper()
	dir, err := os.MkdirTemp(tempBase(), "codehub-pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	o := &Own{TB: t, dir: dir}
	t.Cleanup(func() {
		o.Stop()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := cleanUpAfter(dir); err != nil {
		t.Fatal(err)
	}
	o.Start()
	return o
}

// DSN is the address of the database. It stays the same over restarts.
func (o *Own) DSN() string { return o.pg.URL() }

// Start starts PostgreSQL again after Stop.
func (o *Own) Start() {
	o.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pg, err := embedded.Start(ctx, embedded.Config{Dir: o.dir, Settings: maps.Clone(settings)})
	if err != nil {
		o.Fatalf("start a PostgreSQL of the test's own: %v", err)
	}
	o.pg = pg
}

// Stop ends PostgreSQL and all its connections.
func (o *Own) Stop() {
	o.Helper()
	if o.pg == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := o.pg.Stop(ctx); err != nil {
		o.Errorf("stop the PostgreSQL of the test's own: %v", err)
	}
}

// Superuser runs statements as the superuser, after Stop.
func (o *Own) Superuser(sql string) {
	o.Helper()
	data := filepath.Join(o.dir, "postgres", "data")
	opts, err := os.ReadFile(filepath.Join(data, "postmaster.opts"))
	if err != nil {
		o.Fatal(err)
	}
	folder, err := os.Open(data)
	if err != nil {
		o.Fatal(err)
	}
	defer folder.Close()
	fi, err := folder.Stat()
	if err != nil {
		o.Fatal(err)
	}
	program, _, _ := strings.Cut(string(opts), " ")
	// The owner of the folder may not enter those around it.
	cmd := exec.Command(program, "--single", "-D", "/proc/self/fd/3", "-c", "exit_on_error=on", "template1")
	cmd.Dir, cmd.Stdin, cmd.ExtraFiles = "/", strings.NewReader(sql+"\n"), []*os.File{folder}
	if owner := fi.Sys().(*syscall.Stat_t); os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		o.Fatalf("%v: %s", err, out)
	}
}
