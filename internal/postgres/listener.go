package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"codehub/internal/health"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Channels that the database's triggers tell changes on.
const (
	ChannelSSE     = "ws_sse"       // a workspace's owner would see it differently
	ChannelWake    = "ws_wake"      // there is something for the controller to do
	ChannelDeleted = "ws_deleted"   // a workspace was deleted
	ChannelAuth    = "auth_changed" // a session or token ended, or a user changed
)

// Notification is one of the database's. Payload is JSON: {"id","owner"} of a
// workspace, or on ChannelAuth {"user","session"}, the session's or token's
// hash in hex, or "" for all of the user's.
type Notification struct {
	Channel string
	Payload string
}

// Listener hears the database's notifications on a connection of its own.
type Listener struct {
	dsn       string
	condition *health.Condition

	// A connection that has fallen silent is noticed within the sum of both.
	pingEvery, pingTimeout time.Duration
}

// NewListener makes a listener on the database at dsn. conditions lists that its
// connection is broken; nil: it is only logged.
func NewListener(dsn string, log *slog.Logger, conditions *health.Monitor) *Listener {
	condition := conditions.New(health.Config{
		Name: "notifications", Failing: "listen for changes failed; retrying", Resolved: "listening for changes again", Level: slog.LevelWarn, Log: log,
	})
	return &Listener{dsn: dsn, condition: condition, pingEvery: 5 * time.Second, pingTimeout: 5 * time.Second}
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Run passes every notification to handle, one at a time, until ctx ends, and then
// returns nil. It reconnects after a lost connection. Notifications that were sent
// meanwhile are lost, so gap is called after every connect, also the first: the
// receiver then reads everything again. Notifications of changes made after that
// call are not lost. Run fails only if the dsn is invalid.
func (l *Listener) Run(ctx context.Context, handle func(Notification), gap func()) error {
	cfg, err := ConnConfig(l.dsn, "codehub-listener")
	if err != nil {
		return err
	}
	retry := firstRetry
	for {
		err := l.listen(ctx, cfg, handle, func() {
			retry = firstRetry
			l.condition.Set(nil)
			gap()
		})
		if ctx.Err() != nil {
			return nil
		}
		wait := retry/2 + rand.N(retry/2)
		retry = min(retry*2, lastRetry)
		l.condition.Set(err, "retry_in", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (l *Listener) listen(ctx context.Context, cfg *pgx.ConnConfig, handle func(Notification), gap func()) error {
	conn, err := subscribe(ctx, cfg)
	if err != nil {
		return err
	}
	defer goodbye(ctx, conn)
	gap()
	for {
		n, err := l.next(ctx, conn)
		if err != nil {
			return err
		}
		if n != nil {
			handle(Notification{Channel: n.Channel, Payload: n.Payload})
		}
	}
}

func subscribe(ctx context.Context, cfg *pgx.ConnConfig) (*pgx.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, 2*connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(bounded, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to listen: %w", err)
	}
	for _, channel := range []string{ChannelSSE, ChannelWake, ChannelDeleted, ChannelAuth} {
		if _, err := conn.Exec(bounded, `LISTEN `+channel); err != nil {
			goodbye(ctx, conn)
			return nil, fmt.Errorf("listen on %s: %w", channel, err)
		}
	}
	return conn, nil
}

// goodbye closes a connection that may be broken.
func goodbye(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends with the connection, said goodbye to or not
}

// next waits for a notification. When none comes for a while it asks whether
// the connection still stands, and returns nil.
func (l *Listener) next(ctx context.Context, conn *pgx.Conn) (*pgconn.Notification, error) {
	wait, cancel := context.WithTimeout(ctx, l.pingEvery)
	n, err := conn.WaitForNotification(wait)
	cancel()
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil || !pgconn.Timeout(err):
		return nil, fmt.Errorf("wait for notifications: %w", err)
	}
	ping, cancel := context.WithTimeout(ctx, l.pingTimeout)
	defer cancel()
	if err := conn.Ping(ping); err != nil {
		return nil, fmt.Errorf("ping the connection: %w", err)
	}
	return nil, nil
}
