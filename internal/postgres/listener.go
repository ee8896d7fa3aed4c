package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"codehub/internal/base/health"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Channels of notifications. Triggers announce the changes of rows; DB.Notify sends on the
// others.
const (
	ChannelSSE     = "ws_sse"          // a workspace changed for its owner
	ChannelWake    = "ws_wake"         // the controller has work
	ChannelDeleted = "ws_deleted"      // a workspace was deleted
	ChannelAuth    = "auth_changed"    // a session or token ended, or a user changed
	ChannelNotices = "notices_changed" // the notices of a user or the banner changed
	ChannelUnsaved = "ide_unsaved"     // the page of an IDE reported unsaved files
)

// Notification is a notification of the database. Payload is JSON: {"id","owner"} of a
// workspace, or on ChannelAuth {"user","session"}, where session is the hash of the session or
// token in hex, or "" for all of the user's. On ChannelNotices it is {"user"}, "" for all users. On ChannelUnsaved it is what a server passed to
// Notify.
type Notification struct {
	Channel string
	Payload string
}

// Listener receives the database's notifications on a connection of its own.
type Listener struct {
	dsn       string
	condition *health.Condition

	// A connection that stopped responding is noticed within the sum of both.
	pingEvery, pingTimeout time.Duration
}

// NewListener returns a listener on the database at dsn. An outage of its connection is a
// condition of conditions; nil: it is only logged.
func NewListener(dsn string, log *slog.Logger, conditions *health.Monitor) *Listener {
	condition := conditions.New(health.Config{
		Name: "notifications", Failing: "listen for changes failed; retrying", Resolved: "listening for changes again", Level: slog.LevelWarn, Log: log,
	})
	return &Listener{dsn: dsn, condition: condition, pingEvery: 5 * time.Second, pingTimeout: 5 * time.Second}
}

// notifyTimeout limits one Notify.
const notifyTimeout = 5 * time.Second

// Notify sends payloads of at most 7,999 bytes on a channel, to all servers that listen. This
// server receives them as well.
func (db *DB) Notify(ctx context.Context, channel string, payloads []string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	_, err := db.pool.Exec(ctx, `SELECT pg_notify($1, p) FROM unnest($2::text[]) AS p`, channel, payloads)
	return failed("send notifications", err)
}

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Run passes every notification to handle, one at a time, until ctx ends, and then returns nil.
// It reconnects after a lost connection. Notifications sent in the meantime are lost, so it
// calls gap after every connect, including the first: the receiver then reads everything again.
// Notifications of changes made after that call are not lost. Run fails only if the dsn is
// invalid.
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
	defer closeQuietly(ctx, conn)
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
	for _, channel := range []string{ChannelSSE, ChannelWake, ChannelDeleted, ChannelAuth, ChannelNotices, ChannelUnsaved} {
		if _, err := conn.Exec(bounded, `LISTEN `+channel); err != nil {
			closeQuietly(ctx, conn)
			return nil, fmt.Errorf("listen on %s: %w", channel, err)
		}
	}
	return conn, nil
}

// closeQuietly closes a connection that may be broken.
func closeQuietly(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends with the connection in any case
}

// next waits for a notification. If none comes within pingEvery, it pings the database and
// returns nil.
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
