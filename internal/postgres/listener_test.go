package postgres_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/testing/pgtest"
	"codehub/internal/workspace"
)

// listening is a running listener.
type listening struct {
	received chan postgres.Notification
	gaps     chan struct{}
	done     chan error
	stop     context.CancelFunc
}

func listen(t *testing.T, l *postgres.Listener) *listening {
	ctx, cancel := context.WithCancel(t.Context())
	r := &listening{
		received: make(chan postgres.Notification, 1000), gaps: make(chan struct{}, 1000),
		done: make(chan error, 1), stop: cancel,
	}
	go func() {
		r.done <- l.Run(ctx, func(n postgres.Notification) { r.received <- n }, func() { r.gaps <- struct{}{} })
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
	for n := range l.received {
		if n.Channel == channel {
			return
		}
	}
}

func (l *listening) forget() {
	for len(l.received) > 0 {
		<-l.received
	}
}

func TestListener(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	l := listen(t, postgres.NewListener(e.dsn, discard(), nil))
	<-l.gaps
	must(e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: ptr("1")}}))(t)
	l.next(postgres.ChannelSSE)
	must(e.DeleteWorkspace(t.Context(), ann, w.ID, false))(t)
	l.next(postgres.ChannelDeleted)
	if err := e.CreateSession(t.Context(), hash("s"), ann.UserID, "", soon(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteSession(t.Context(), hash("s"), netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	l.next(postgres.ChannelAuth)
	if err := e.Notify(t.Context(), postgres.ChannelUnsaved, []string{"{}"}); err != nil {
		t.Fatal(err)
	}
	l.next(postgres.ChannelUnsaved)

	// After every lost connection the listener reconnects, reports a gap, and receives
	// notifications.
	for range 3 {
		n := e.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'codehub-listener'`)
		if n == 0 { // one that was ended before may still be listed
			t.Fatal("no listener")
		}
		<-l.gaps
		l.forget()
		must(e.CreateWorkspace(t.Context(), ann, newWorkspace(time.Now().String(), workspace.DesiredStandby)))(t)
		l.next(postgres.ChannelWake)
	}
}

// A connection that is cut without a packet, as in a failover, is found by pings and replaced.
// On a busy machine a ping may take longer than this listener waits: notifications sent while
// it reconnects are lost, and the gap reports that.
func TestListenerPings(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	dsn, cut := pgtest.Swallowing(t, e.dsn)
	l := listen(t, postgres.NewListener(dsn, discard(), nil).PingEvery(50*time.Millisecond))
	<-l.gaps
	for range 2 {
		cut()
		<-l.gaps
		for received := false; !received; {
			l.forget()
			e.workspace(e.user(time.Now().String()), nil)
			for waiting := true; waiting; {
				select {
				case n := <-l.received:
					received = n.Channel == postgres.ChannelWake
					waiting = !received
				case <-l.gaps:
					waiting = false
				}
			}
		}
	}
}

// A listener retries until the database responds, and logs the outage once.
func TestListenerWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	database, err := pgx.ParseConfig(newDSN(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // the socket is created here later
	dsn := fmt.Sprintf("host=%s port=%d user=%s password='%s' dbname=%s", dir, database.Port, database.User, database.Password, database.Database)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	logged, connected, done := make(chan struct{}, 100), make(chan struct{}, 100), make(chan error, 1)
	go func() {
		done <- postgres.NewListener(dsn, logTo(logged), nil).Run(ctx, func(postgres.Notification) {}, func() { connected <- struct{}{} })
	}()
	<-logged
	socket := fmt.Sprintf(".s.PGSQL.%d", database.Port)
	if err := os.Symlink(filepath.Join(database.Host, socket), filepath.Join(dir, socket)); err != nil {
		t.Fatal(err)
	}
	<-connected
	<-logged // it recovered
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := len(logged); n > 0 {
		t.Errorf("%d more lines logged", n)
	}
	if err := postgres.NewListener("::", discard(), nil).Run(t.Context(), nil, nil); err == nil {
		t.Error("listened with an invalid dsn")
	}
}
