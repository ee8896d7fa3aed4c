package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
	"codehub/internal/bus/redisbus"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/workspace"
)

// openRedis opens the bus between servers; nil without CODEHUB_REDIS_URL. The server
// also starts while Redis is unreachable, but not with settings that Redis refuses.
func openRedis(ctx context.Context, cfg config.Config, installation string, conditions *health.Monitor, log *slog.Logger) (*redisbus.Redis, error) {
	if cfg.RedisURL == "" {
		return nil, nil
	}
	b, err := redisbus.Open(redisbus.Config{
		URL: cfg.RedisURL, Settings: cfg.Redis, Installation: installation, Log: log, Conditions: conditions,
	})
	if err == nil {
		err = b.Check(ctx)
	}
	if unusable := (*redisbus.Unusable)(nil); errors.As(err, &unusable) {
		if b != nil {
			_ = b.Close()
		}
		return nil, &setting.Problem{Setting: "CODEHUB_REDIS_URL", Why: unusable.Error(), Do: "give the address, user and password of the Redis server, or leave it unset: a single server needs no Redis"}
	}
	if err != nil {
		log.Warn("redis not reachable or in use by another installation; retrying", "err", err)
	}
	return b, nil
}

// publish sends a notification to the other servers through Redis, in addition to their
// connections to the database.
func (s *server) publish(n postgres.Notification) {
	var p struct {
		ID    workspace.ID
		Owner string
	}
	if s.redis == nil || s.leads.Load() == nil || json.Unmarshal([]byte(n.Payload), &p) != nil {
		return
	}
	switch n.Channel {
	case postgres.ChannelSSE, postgres.ChannelDeleted:
		s.redis.PublishEvent(p.Owner, p.ID)
	case postgres.ChannelWake:
		s.redis.PublishWake(p.Owner, p.ID)
	}
}

// receiveFromRedis delivers what the leader publishes on Redis to this server.
func (s *server) receiveFromRedis(ctx context.Context) error {
	return s.redis.Run(ctx, redisbus.Handler{Event: s.hub.Echo, Wake: s.hub.Wake})
}
