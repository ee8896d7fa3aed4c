package redisbus

import (
	"context"
	"encoding/json"

	"github.com/redis/go-redis/v9"

	"codehub/internal/workspace"
)

const (
	// maxQueue is how much may wait to be published; what comes then is dropped.
	maxQueue = 1024
	// maxBatch is how much is published with one round trip.
	maxBatch = 128
)

// changed is what is published: ids, never content.
type changed struct {
	ID    workspace.ID `json:"id"`
	Owner string       `json:"owner"`
}

// message is one to be published.
type message struct {
	channel string
	payload changed
}

// PublishEvent tells all servers that a workspace changed. It never waits: what
// Redis is too slow for is dropped, and they hear of it from the database.
func (b *Redis) PublishEvent(owner string, id workspace.ID) {
	b.enqueue(message{b.cfg.SSEPrefix + ":" + owner, changed{id, owner}})
}

// PublishWake tells all servers that there is something for the controller to
// do. It never waits.
func (b *Redis) PublishWake(owner string, id workspace.ID) {
	b.enqueue(message{b.wakeChannel(), changed{id, owner}})
}

func (b *Redis) enqueue(m message) {
	select {
	case b.queue <- m:
	default:
		b.dropped.Add(1)
	}
}

// publish sends what is queued until ctx ends.
func (b *Redis) publish(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-b.queue:
			batch := b.gather(m)
			if err := b.send(ctx, batch); err != nil && ctx.Err() == nil {
				b.dropped.Add(int64(len(batch)))
				b.cfg.Log.DebugContext(ctx, "publish to Redis", "err", err)
			}
		}
	}
}

// gather takes what else is queued. A wake says the same as the one before it.
func (b *Redis) gather(first message) []message {
	batch := []message{first}
	woken := first.channel == b.wakeChannel()
	for len(batch) < maxBatch {
		select {
		case m := <-b.queue:
			if wake := m.channel == b.wakeChannel(); wake {
				if woken {
					continue
				}
				woken = true
			}
			batch = append(batch, m)
		default:
			return batch
		}
	}
	return batch
}

func (b *Redis) send(ctx context.Context, batch []message) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, m := range batch {
			payload, err := json.Marshal(m.payload)
			if err != nil {
				return err
			}
			p.Publish(ctx, m.channel, payload)
		}
		return nil
	})
	return err
}
