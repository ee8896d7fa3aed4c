package redisbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"codehub/internal/bus/activity"
	"codehub/internal/workspace"
)

var _ activity.Bus = (*Redis)(nil)

// Activity is stored in a sorted set of workspaces, scored by the millisecond of
// their last use, and a hash with the kinds.
//
// An epoch consists of the Redis server's run ID and a random mark in the set
// itself, with a score that no time has. So it ends whenever a part of the set may
// have been lost: by FLUSHALL, eviction, a restart with an older snapshot, or a
// failover to a replica that was behind.
//
// The mark also contains the installation's ID, ARGV[1], because installations that
// shared the key would remove each other's data. The keys expire one hour after
// the last add or read, so that no cleanup is needed after an installation is
// removed.
const markOf = `
local mark = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1]
if mark and string.sub(mark, 1, #ARGV[1] + 1) ~= ARGV[1] .. '/' then
	return redis.error_reply('FOREIGN the key is in use by another installation')
end
`

// epochOf takes a new mark in ARGV[2].
const epochOf = markOf + `
if not mark then
	mark = ARGV[1] .. '/' .. ARGV[2]
	redis.call('DEL', KEYS[2])
	redis.call('ZADD', KEYS[1], -1, mark)
end
redis.call('EXPIRE', KEYS[1], 3600)
redis.call('EXPIRE', KEYS[2], 3600)
local epoch = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ':' .. mark
`

var (
	epochScript = redis.NewScript(epochOf + `return epoch`)
	// addScript takes ARGV[3…] in groups of three: workspace, millisecond, kind.
	addScript = redis.NewScript(epochOf + `
for i = 3, #ARGV, 3 do
	if redis.call('ZADD', KEYS[1], 'GT', 'CH', ARGV[i + 1], ARGV[i]) == 1 then
		redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
	end
end
return epoch`)
	// removeScript takes ARGV[2…] in pairs: workspace, millisecond.
	removeScript = redis.NewScript(markOf + `
for i = 2, #ARGV, 2 do
	local at = redis.call('ZSCORE', KEYS[1], ARGV[i])
	if at and tonumber(at) >= 0 and tonumber(at) <= tonumber(ARGV[i + 1]) then
		redis.call('ZREM', KEYS[1], ARGV[i])
		redis.call('HDEL', KEYS[2], ARGV[i])
	end
end
return 0`)
)

// maxPerScript limits the accesses per script, so that Redis is blocked for a few
// milliseconds at most.
const maxPerScript = 1000

var errLost = errors.New("Redis lost its data in the meantime")

// Add implements activity.Bus.
func (b *Redis) Add(ctx context.Context, seen []activity.Access) (epoch string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for first := true; first || len(seen) > 0; first = false {
		part := seen[:min(len(seen), maxPerScript)]
		seen = seen[len(part):]
		args := append(make([]any, 0, 2+3*len(part)), b.cfg.Installation, uuid.NewString())
		for _, a := range part {
			if ms := a.At.UnixMilli(); ms >= 0 {
				args = append(args, string(a.ID), ms, string(a.Kind))
			}
		}
		got, err := addScript.Run(ctx, b.client, b.keys(), args...).Text()
		if err != nil {
			return "", fmt.Errorf("add activity to Redis: %w", err)
		}
		if !first && got != epoch {
			return "", fmt.Errorf("add activity to Redis: %w", errLost)
		}
		epoch = got
	}
	return epoch, nil
}

// Read implements activity.Bus.
func (b *Redis) Read(ctx context.Context) (seen []activity.Access, epoch string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var got *redis.Cmd
	var at *redis.ZSliceCmd
	var kinds *redis.MapStringStringCmd
	_, err = b.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		got = epochScript.Eval(ctx, p, b.keys(), b.cfg.Installation, uuid.NewString())
		at = p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{Key: b.cfg.ActivityKey, Start: "0", Stop: "+inf", ByScore: true})
		kinds = p.HGetAll(ctx, b.kindsKey())
		return nil
	})
	if err == nil {
		epoch, err = got.Text()
	}
	if err != nil {
		return nil, "", fmt.Errorf("read activity from Redis: %w", err)
	}
	seen = make([]activity.Access, 0, len(at.Val()))
	for _, z := range at.Val() {
		// Ignore members that are not codehub's.
		if id, ok := z.Member.(string); ok && workspace.ValidID(id) {
			seen = append(seen, activity.Access{ID: workspace.ID(id), At: time.UnixMilli(int64(z.Score)), Kind: activity.Kind(kinds.Val()[id])})
		}
	}
	return seen, epoch, nil
}

// Remove implements activity.Bus.
func (b *Redis) Remove(ctx context.Context, seen []activity.Access) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for len(seen) > 0 {
		part := seen[:min(len(seen), maxPerScript)]
		seen = seen[len(part):]
		args := append(make([]any, 0, 1+2*len(part)), b.cfg.Installation)
		for _, a := range part {
			args = append(args, string(a.ID), a.At.UnixMilli())
		}
		if err := removeScript.Run(ctx, b.client, b.keys(), args...).Err(); err != nil {
			return fmt.Errorf("remove activity from Redis: %w", err)
		}
	}
	return nil
}

func (b *Redis) keys() []string { return []string{b.cfg.ActivityKey, b.kindsKey()} }

func (b *Redis) kindsKey() string { return b.cfg.ActivityKey + ":kinds" }
