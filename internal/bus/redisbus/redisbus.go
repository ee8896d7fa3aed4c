// Package redisbus is the bus between servers over Redis (design §4): events
// and wakes by pub/sub, and what people did by a sorted set. It makes things
// quicker and nothing true: whatever Redis loses is read from the database, and
// what it forgets of people's activity is unknown, never idleness.
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

	"codehub/internal/workspace"
)

// Bounds of every wait for Redis.
const (
	dialWithin = time.Second
	// answerWithin bounds one command.
	answerWithin = time.Second
	// within bounds a call, which may be several commands.
	within = 2 * time.Second
)

// Config configures Open.
type Config struct {
	// URL of the server: redis://[user:password@]host:port/db, rediss:// with
	// TLS, or unix:///path?db=0.
	URL string
	// Names (the settings REDIS_CHANNEL_SSE_PREFIX, REDIS_CHANNEL_WAKE_PREFIX,
	// CODEHUB_REDIS_ACTIVITY_KEY).
	SSEPrefix, WakePrefix, ActivityKey string
	// Installation is the database's: only its servers share the activity.
	Installation string
	Log          *slog.Logger
}

// Hearer is told, in the goroutine of Run, what a server published: that a
// workspace changed, and that there is something for the controller to do. It
// must not block.
type Hearer struct {
	Event func(owner string, id workspace.ID)
	Wake  func()
}

// Redis is the bus. It is safe for concurrent use.
type Redis struct {
	cfg    Config
	client *redis.Client

	queue   chan message
	dropped atomic.Int64
	// trouble is why the subscription does not stand; nil when it does.
	trouble atomic.Pointer[error]

	// A subscription that has fallen silent is noticed within the sum of
	// pingEvery and pingTimeout, and made anew at most retryLast later.
	pingEvery, pingTimeout time.Duration
	retryFirst, retryLast  time.Duration
}

// Open makes the bus without asking the server: see Check. It fails on a URL
// that makes no sense, and never repeats it, as it may hold a password.
func Open(cfg Config) (*Redis, error) {
	opts, err := redis.ParseURL(cfg.URL)
	if err != nil {
		return nil, &Unusable{Why: "it is no address of a Redis server: " + unquoted(err)}
	}
	opts.DialTimeout, opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = dialWithin, answerWithin, answerWithin, answerWithin
	opts.ContextTimeoutEnabled = true
	opts.Protocol = 2                          // messages come in the order and framing of answers
	opts.DialerRetries, opts.MaxRetries = 1, 1 // once more, on a new connection, after a server's restart
	opts.PoolSize, opts.MaxActiveConns, opts.PipelinePoolSize = 8, 8, -1
	opts.ClientName = "codehub"
	opts.DisableIdentity = true
	opts.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	redis.SetLogger(silent{}) // what goes wrong is returned, and logged by whom it concerns
	b := &Redis{
		cfg: cfg, client: redis.NewClient(opts), queue: make(chan message, maxQueue),
		retryFirst: 100 * time.Millisecond, retryLast: 5 * time.Second,
		pingEvery: 2 * time.Second, pingTimeout: 2 * time.Second,
	}
	notYet := errors.New("not yet subscribed")
	b.trouble.Store(&notYet)
	return b, nil
}

// Close ends all connections.
func (b *Redis) Close() error { return b.client.Close() }

// Unusable is what no waiting mends: a setting that is wrong.
type Unusable struct {
	Why string
	Err error // may be nil
}

func (u *Unusable) Error() string {
	if u.Err != nil {
		return fmt.Sprintf("%s: %v", u.Why, u.Err)
	}
	return u.Why
}

func (u *Unusable) Unwrap() error { return u.Err }

// Commands are what codehub's user of Redis has to be allowed.
const Commands = "PING, HELLO, CLIENT, SELECT, INFO, PUBLISH, SUBSCRIBE, PSUBSCRIBE, MULTI, EXEC, EVAL, EVALSHA, ZADD, ZRANGE, ZRANGEBYSCORE, ZSCORE, ZREM, HSET, HDEL, HGETALL, DEL, EXPIRE"

// Check asks the server for everything that the bus needs of it. An error is
// *Unusable if the setting is wrong, and anything else if the server is not
// there now, or in use by another installation, which may pass.
func (b *Redis) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := b.client.Ping(ctx).Err(); err != nil {
		return judged(err)
	}
	if _, _, err := b.Read(ctx); err != nil {
		return judged(err)
	}
	if _, err := b.Add(ctx, nil); err != nil {
		return judged(err)
	}
	if err := b.client.Publish(ctx, b.wakeChannel(), "").Err(); err != nil {
		return judged(err)
	}
	return nil
}

// judged tells settings that are wrong from a server that is away.
func judged(err error) error {
	said := err.Error()
	for _, c := range []struct{ begins, why string }{
		{"WRONGPASS", "the server refuses the name or password"},
		{"NOAUTH", "the server wants a password"},
		{"NOPERM", "this user may not do what codehub needs: " + Commands + ", on its channels and keys"},
		{"ERR DB index is out of range", "the server has no such database"},
		{"READONLY", "the server is a read-only replica"},
		{"ERR unknown command", "the server is too old: Redis 6.2 or later is needed"},
	} {
		if strings.Contains(said, c.begins) {
			return &Unusable{c.why, err}
		}
	}
	return err
}

// unquoted is what is wrong with a URL, without the URL.
func unquoted(err error) string {
	s := err.Error()
	if i := strings.IndexByte(s, '"'); i >= 0 {
		s = strings.TrimRight(s[:i], " :")
	}
	return strings.TrimPrefix(s, "redis: ")
}

// Trouble is why the bus does not work now, nil if it does. It asks nobody.
func (b *Redis) Trouble() error { return *b.trouble.Load() }

// Dropped counts what was not published, as Redis was too slow or away.
func (b *Redis) Dropped() int64 { return b.dropped.Load() }

// silent is a logger.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
