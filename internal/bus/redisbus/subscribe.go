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

// Run publishes queued messages and handles received ones until ctx ends, and then
// returns nil. It reconnects while Redis is unreachable. That is no gap for
// subscribers, because the database sends the same events.
func (b *Redis) Run(ctx context.Context, h Handler) error {
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.publish(gctx) })
	g.Go(func() error { return b.subscribe(gctx, h) })
	return g.Wait()
}

func (b *Redis) subscribe(ctx context.Context, h Handler) error {
	retry := b.retryFirst
	for {
		err := b.listen(ctx, h, func() {
			b.err.Store(new(error))
			b.away.Set(nil)
			retry = b.retryFirst
		})
		if ctx.Err() != nil {
			return nil
		}
		b.err.Store(&err)
		wait := retry/2 + rand.N(retry/2)
		retry = min(retry*2, b.retryLast)
		b.away.Set(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// listen subscribes, calls ready, and handles messages until the connection breaks.
func (b *Redis) listen(ctx context.Context, h Handler, ready func()) error {
	ps := b.client.Subscribe(ctx)
	defer ps.Close()
	defer context.AfterFunc(ctx, func() { _ = ps.Close() })()
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
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
			b.handle(m, h)
		}
	}
}

// receive waits for a message. After a period without messages it checks the
// connection.
func (b *Redis) receive(ctx context.Context, ps *redis.PubSub) (any, error) {
	got, err := ps.ReceiveTimeout(ctx, b.pingEvery)
	if !timedOut(err) {
		return got, wrapped("hear from Redis", err)
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
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

// handle processes a message. A forged message can only cause a row to be read
// again.
func (b *Redis) handle(m *redis.Message, h Handler) {
	if m.Channel == b.wakeChannel() {
		h.Wake()
		return
	}
	owner := strings.TrimPrefix(m.Channel, b.cfg.SSEPrefix+":")
	var p changed
	if err := json.Unmarshal([]byte(m.Payload), &p); err != nil || !workspace.ValidID(owner) || !workspace.ValidID(string(p.ID)) {
		b.cfg.Log.Debug("invalid event on redis", "channel", m.Channel)
		return
	}
	h.Event(owner, p.ID)
}

func (b *Redis) wakeChannel() string { return b.cfg.WakePrefix + ":wc" }
