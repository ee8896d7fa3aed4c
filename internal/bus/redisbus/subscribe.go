package redisbus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"codehub/internal/workspace"
)

// Run publishes what was handed over and hears what others publish, until ctx
// ends, and then returns nil. While Redis is away it tries again; nobody has to
// read anything afresh for that, as the database tells everything, too.
func (b *Redis) Run(ctx context.Context, h Hearer) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.publish(gctx) })
	g.Go(func() error { return b.subscribe(gctx, h) })
	return g.Wait()
}

func (b *Redis) subscribe(ctx context.Context, h Hearer) error {
	retry, told := b.retryFirst, false
	for {
		err := b.listen(ctx, h, func() {
			b.trouble.Store(new(error))
			if told {
				b.cfg.Log.Info("Redis is back")
			}
			retry, told = b.retryFirst, false
		})
		if ctx.Err() != nil {
			return nil
		}
		b.trouble.Store(&err)
		wait := retry/2 + rand.N(retry/2)
		retry = min(retry*2, b.retryLast)
		if !told {
			told = true
			b.cfg.Log.Warn("Redis is away: events and wakes come by the database alone, and activity is kept there", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// listen subscribes, says so with ready, and hears until the connection breaks.
func (b *Redis) listen(ctx context.Context, h Hearer, ready func()) error {
	ps := b.client.Subscribe(ctx)
	defer ps.Close()
	defer context.AfterFunc(ctx, func() { _ = ps.Close() })()
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := ps.Subscribe(bounded, b.wakeChannel()); err != nil {
		return fmt.Errorf("subscribe to wakes: %w", err)
	}
	if err := ps.PSubscribe(bounded, b.cfg.SSEPrefix+":*"); err != nil {
		return fmt.Errorf("subscribe to events: %w", err)
	}
	confirmed := map[string]bool{}
	for {
		got, err := b.receive(ctx, ps)
		if err != nil {
			return err
		}
		switch m := got.(type) {
		case *redis.Subscription:
			if confirmed[m.Kind] = true; len(confirmed) == 2 {
				ready()
			}
		case *redis.Message:
			b.heard(m, h)
		}
	}
}

// receive waits for whatever comes. When nothing does it asks whether the
// connection still stands.
func (b *Redis) receive(ctx context.Context, ps *redis.PubSub) (any, error) {
	got, err := ps.ReceiveTimeout(ctx, b.pingEvery)
	if !timedOut(err) {
		return got, wrapped("hear from Redis", err)
	}
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := ps.Ping(bounded); err != nil {
		return nil, wrapped("ping Redis", err)
	}
	got, err = ps.ReceiveTimeout(ctx, b.pingTimeout)
	return got, wrapped("wait for Redis' answer", err)
}

func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func wrapped(verb string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// heard hands on a message. Whoever can publish there can cause no more than
// that a row is read again.
func (b *Redis) heard(m *redis.Message, h Hearer) {
	if m.Channel == b.wakeChannel() {
		h.Wake()
		return
	}
	owner := strings.TrimPrefix(m.Channel, b.cfg.SSEPrefix+":")
	var p changed
	if err := json.Unmarshal([]byte(m.Payload), &p); err != nil || !workspace.ValidID(owner) || !workspace.ValidID(string(p.ID)) {
		b.cfg.Log.Debug("a message on Redis that is no event", "channel", m.Channel)
		return
	}
	h.Event(owner, p.ID)
}

func (b *Redis) wakeChannel() string { return b.cfg.WakePrefix + ":wc" }
