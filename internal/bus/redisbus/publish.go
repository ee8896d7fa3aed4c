package redisbus

import (
	"context"
	"encoding/json"

	"github.com/redis/go-redis/v9"

	"codehub/internal/workspace"
)

const (
	// maxQueue limits the queue; further messages are dropped.
	maxQueue = 1024
	// maxBatch limits the messages per round trip.
	maxBatch = 128
)

// changed is the payload of a message: IDs, never content.
type changed struct {
	ID    workspace.ID `json:"id"`
	Owner string       `json:"owner"`
}

// message is a message to publish.
type message struct {
	channel string
	payload changed
}

// PublishEvent tells all servers that a workspace has changed. It never blocks: if
// Redis is too slow the message is dropped, and the servers are notified by the
// database.
func (b *Redis) PublishEvent(owner string, id workspace.ID) {
	b.enqueue(message{b.cfg.SSEPrefix + ":" + owner, changed{id, owner}})
}

// PublishWake asks the leader's controller for a tick. It never blocks.
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

// publish sends queued messages until ctx ends.
func (b *Redis) publish(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-b.queue:
			batch := b.gather(m)
			if err := b.send(ctx, batch); err != nil && ctx.Err() == nil {
				b.dropped.Add(int64(len(batch)))
				b.cfg.Log.DebugContext(ctx, "publish to Redis failed", "err", err)
			}
		}
	}
}

// gather adds the other queued messages to the batch. Consecutive wakes are merged.
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
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
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
