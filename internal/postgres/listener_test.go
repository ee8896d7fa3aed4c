package postgres_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// listening is a running listener.
type listening struct {
	heard chan postgres.Notification
	gaps  chan struct{}
	done  chan error
	stop  context.CancelFunc
}

func listen(t *testing.T, l *postgres.Listener) *listening {
	ctx, cancel := context.WithCancel(t.Context())
	r := &listening{
		heard: make(chan postgres.Notification, 1000), gaps: make(chan struct{}, 1000),
		done: make(chan error, 1), stop: cancel,
	}
	go func() {
		r.done <- l.Run(ctx, func(n postgres.Notification) { r.heard <- n }, func() { r.gaps <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (l *listening) next(channel string) {
	for n := range l.heard {
		if n.Channel == channel {
			return
		}
	}
}

func (l *listening) forget() {
	for len(l.heard) > 0 {
		<-l.heard
	}
}

func TestListener(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	l := listen(t, postgres.NewListener(e.dsn, discard()))
	<-l.gaps
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Memo: ptr("1")}))(t)
	l.next(postgres.ChannelSSE)
	must(e.DeleteWorkspace(t.Context(), ann, w.ID, false))(t)
	l.next(postgres.ChannelDeleted)
	if err := e.CreateSession(t.Context(), hash("s"), ann.UserID, "", soon(time.Hour), ""); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteSession(t.Context(), hash("s")); err != nil {
		t.Fatal(err)
	}
	l.next(postgres.ChannelAuth)

	// However often it is cut off, it comes back, says so, and hears on.
	for range 3 {
		n := e.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'codehub-listener'`)
		if n != 1 {
			t.Fatalf("%d listeners", n)
		}
		<-l.gaps
		l.forget()
		must(e.CreateWorkspace(t.Context(), ann, newWorkspace(time.Now().String(), workspace.DesiredStandby)))(t)
		l.next(postgres.ChannelWake)
	}
}

// A connection that is cut without a word, as a failover cuts it, is found by
// asking; one that stands is kept.
func TestListenerPings(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	dsn, cut := between(t, e.dsn)
	l := listen(t, postgres.NewListener(dsn, discard()).Impatient(50*time.Millisecond))
	<-l.gaps
	for range 2 {
		cut()
		<-l.gaps
		l.forget()
		e.workspace(e.user(time.Now().String()), nil)
		l.next(postgres.ChannelWake)
	}
}

// A database that is not there yet is waited for.
func TestListenerWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	logged := make(chan struct{}, 100)
	done := make(chan error, 1)
	go func() {
		done <- postgres.NewListener("host=/nowhere dbname=x", logTo(logged)).Run(ctx,
			func(postgres.Notification) {}, func() { t.Error("connected to nowhere") })
	}()
	<-logged
	<-logged
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := postgres.NewListener("::", discard()).Run(t.Context(), nil, nil); err == nil {
		t.Error("listened to nonsense")
	}
}

// between puts itself between a client and the database. cut lets the present
// connections go silent in both directions without closing them.
func between(t *testing.T, dsn string) (through string, cut func()) {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	network, address := pgconn.NetworkAddress(cfg.Host, cfg.Port)
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	silent := make(chan struct{})
	var open []net.Conn
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close()
		}
	})
	pipe := func(to, from net.Conn, silent <-chan struct{}) {
		buf := make([]byte, 4096)
		for {
			n, err := from.Read(buf)
			if err != nil {
				_ = to.Close()
				return
			}
			select {
			case <-silent:
				_, _ = io.Copy(io.Discard, from)
				return
			default:
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(network, address)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, server)
			go pipe(server, client, silent)
			go pipe(client, server, silent)
			mu.Unlock()
		}
	}()
	u := "host=" + dir + " port=5432 user=" + cfg.User + " password='" + cfg.Password + "' dbname=" + cfg.Database
	return u, func() {
		mu.Lock()
		defer mu.Unlock()
		close(silent)
		silent = make(chan struct{})
	}
}
