package redisbus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"codehub/internal/activity"
	"codehub/internal/workspace"
)

var _ activity.Bus = (*Redis)(nil)

// What people did is kept in a sorted set, workspaces by the millisecond of
// their last use, and in a hash beside it, their kinds.
//
// An epoch is the server's run and a mark in the set itself, with a score that
// no time has. So it ends with whatever may have lost a part of the set: FLUSHALL,
// the key's eviction where memory is short, a restart that reads an older
// snapshot, a failover to a replica that was behind.
//
// The mark also names the installation, ARGV[1]: another one that used the same
// key would take out what is not its own. It is kept for an hour after the last
// that was added or read, so that nobody has to clear up after a database that
// is no more.
const markOf = `
local mark = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(0', 'LIMIT', 0, 1)[1]
if mark and string.sub(mark, 1, #ARGV[1] + 1) ~= ARGV[1] .. '/' then
	return redis.error_reply('FOREIGN the key is in use by another installation')
end
`

// epochOf takes what may become the mark's own part in ARGV[2].
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
	// addScript takes ARGV[3…] in threes: workspace, millisecond, kind.
	addScript = redis.NewScript(epochOf + `
for i = 3, #ARGV, 3 do
	if redis.call('ZADD', KEYS[1], 'GT', 'CH', ARGV[i + 1], ARGV[i]) == 1 then
		redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
	end
end
return epoch`)
	// removeScript takes ARGV[2…] in twos: workspace, millisecond.
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

// atOnce is how many accesses one script takes, so that Redis is held up for a
// few milliseconds at most.
const atOnce = 1000

var errLost = errors.New("Redis lost what it held meanwhile")

// Add is activity.Bus's.
func (b *Redis) Add(ctx context.Context, seen []activity.Access) (epoch string, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for first := true; first || len(seen) > 0; first = false {
		part := seen[:min(len(seen), atOnce)]
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

// Read is activity.Bus's.
func (b *Redis) Read(ctx context.Context) (seen []activity.Access, epoch string, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
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
		// Whatever somebody else put there is left alone.
		if id, ok := z.Member.(string); ok && workspace.ValidID(id) {
			seen = append(seen, activity.Access{ID: workspace.ID(id), At: time.UnixMilli(int64(z.Score)), Kind: activity.Kind(kinds.Val()[id])})
		}
	}
	return seen, epoch, nil
}

// Remove is activity.Bus's.
func (b *Redis) Remove(ctx context.Context, seen []activity.Access) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for len(seen) > 0 {
		part := seen[:min(len(seen), atOnce)]
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
