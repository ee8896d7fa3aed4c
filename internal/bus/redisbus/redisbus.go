// Package redisbus connects servers over Redis: events and wakes through pub/sub,
// activity through a sorted set. It only reduces delays: events that Redis loses
// are read from the database, and lost activity counts as unknown, not as idleness.
package redisbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"codehub/internal/base/health"
	"codehub/internal/workspace"
)

// Limits of waits for Redis.
const (
	dialWithin = time.Second
	// commandTimeout limits one command.
	commandTimeout = time.Second
	// callTimeout limits a call, which may be several commands.
	callTimeout = 2 * time.Second
)

// Config configures Open.
type Config struct {
	// URL of the Redis server: redis://[user:password@]host:port/db, rediss:// with
	// TLS, or unix:///path?db=0.
	URL string
	Settings
	// Installation is the database's ID: only its servers share the activity.
	Installation string
	Log          *slog.Logger
	// Conditions lists that Redis does not respond; nil: it is only logged.
	Conditions *health.Monitor
}

// Handler receives the messages that servers publish: changed workspaces and wakes
// of the controller. It is called by Run and must not block.
type Handler struct {
	Event func(owner string, id workspace.ID)
	Wake  func()
}

// Redis is the bus. It is safe for concurrent use.
type Redis struct {
	cfg    Config
	client *redis.Client

	queue   chan message
	dropped atomic.Int64
	// err is why the subscription is down; nil while it works.
	err  atomic.Pointer[error]
	away *health.Condition

	// A silent subscription is detected within pingEvery plus pingTimeout, and
	// renewed at most retryLast later.
	pingEvery, pingTimeout time.Duration
	retryFirst, retryLast  time.Duration
}

// Open returns the bus without connecting; see Check. Its error never contains the
// URL, which may hold a password.
func Open(cfg Config) (*Redis, error) {
	opts, err := redis.ParseURL(cfg.URL)
	if err != nil {
		return nil, &Unusable{Why: "it is no address of a Redis server: " + withoutURL(err)}
	}
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = dialWithin, commandTimeout, commandTimeout, commandTimeout
	opts.ContextTimeoutEnabled = true
	opts.Protocol = 2                          // messages are then framed and ordered like replies
	opts.DialerRetries, opts.MaxRetries = 1, 1 // one retry on a new connection, after a restart of Redis
	opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = 8, 8, -1
	opts.ClientName = "codehub"
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	redis.SetLogger(noLogger{}) // errors are returned, and logged by the caller
	b := &Redis{
		cfg: cfg, client: redis.NewClient(opts), queue: make(chan message, maxQueue),
		retryFirst: 100 * time.Millisecond, retryLast: 5 * time.Second,
		pingEvery: 2 * time.Second, pingTimeout: 2 * time.Second,
	}
	b.away = cfg.Conditions.New(health.Config{
		Name: "redis", Failing: "redis not reachable; using the database only", Resolved: "redis connection restored", Level: slog.LevelWarn, Log: cfg.Log,
	})
	notYet := errors.New("not yet subscribed")
	b.err.Store(&notYet)
	return b, nil
}

// Close closes all connections.
func (b *Redis) Close() error { return b.client.Close() }

// Unusable is an error that retrying does not fix: a wrong setting.
type Unusable struct {
	Why string
	Err error // optional
}

func (u *Unusable) Error() string {
	if u.Err != nil {
		return fmt.Sprintf("%s: %v", u.Why, u.Err)
	}
	return u.Why
}

func (u *Unusable) Unwrap() error { return u.Err }

// Commands are the commands that codehub's Redis user needs permission for.
const Commands = "PING, HELLO, CLIENT, SELECT, INFO, PUBLISH, SUBSCRIBE, PSUBSCRIBE, MULTI, EXEC, EVAL, EVALSHA, ZADD, ZRANGE, ZRANGEBYSCORE, ZSCORE, ZREM, HSET, HDEL, HGETALL, DEL, EXPIRE"

// Check tries everything that the bus needs. The error is *Unusable if a setting is
// wrong; other errors are temporary: Redis is not reachable, or another
// installation uses it.
func (b *Redis) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := b.client.Ping(ctx).Err(); err != nil {
		return classify(err)
	}
	if _, _, err := b.Read(ctx); err != nil {
		return classify(err)
	}
	if _, err := b.Add(ctx, nil); err != nil {
		return classify(err)
	}
	if err := b.client.Publish(ctx, b.wakeChannel(), "").Err(); err != nil {
		return classify(err)
	}
	return nil
}

// classify distinguishes wrong settings from an unreachable Redis.
func classify(err error) error {
	text := err.Error()
	for _, c := range []struct{ begins, why string }{
		{"WRONGPASS", "the server refuses the name or password"},
		{"NOAUTH", "the server wants a password"},
		{"NOPERM", "this user may not do what codehub needs: " + Commands + ", on its channels and keys"},
		{"ERR DB index is out of range", "the server has no such database"},
		{"READONLY", "the server is a read-only replica"},
		{"ERR unknown command", "the server is too old: Redis 6.2 or later is needed"},
	} {
		if strings.Contains(text, c.begins) {
			return &Unusable{c.why, err}
		}
	}
	return err
}

// withoutURL returns the error in a URL without the URL.
func withoutURL(err error) string {
	s := err.Error()
	if i := strings.IndexByte(s, '"'); i >= 0 {
		s = strings.TrimRight(s[:i], " :")
	}
	return strings.TrimPrefix(s, "redis: ")
}

// Trouble returns why the bus does not work now, or nil. It makes no request.
func (b *Redis) Trouble() error { return *b.err.Load() }

// Dropped returns the number of messages dropped because Redis was slow or
// unreachable.
func (b *Redis) Dropped() int64 { return b.dropped.Load() }

// noLogger discards the client's own log messages.
type noLogger struct{}

func (noLogger) Printf(context.Context, string, ...any) {}
