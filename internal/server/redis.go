package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"codehub/internal/bus/redisbus"
	"codehub/internal/config"
	"codehub/internal/health"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// openRedis makes the bus between servers, nil without CODEHUB_REDIS_URL. A
// Redis that is away now is no reason not to serve; one that refuses is a
// setting to mend.
func openRedis(ctx context.Context, cfg config.Config, installation string, conditions *health.Monitor, log *slog.Logger) (*redisbus.Redis, error) {
	if cfg.RedisURL == "" {
		return nil, nil
	}
	b, err := redisbus.Open(redisbus.Config{
		URL: cfg.RedisURL, SSEPrefix: cfg.SSEPrefix, WakePrefix: cfg.WakePrefix, ActivityKey: cfg.ActivityKey,
		Installation: installation, Log: log, Conditions: conditions,
	})
	if err == nil {
		err = b.Check(ctx)
	}
	if unusable := (*redisbus.Unusable)(nil); errors.As(err, &unusable) {
		if b != nil {
			_ = b.Close()
		}
		return nil, &config.Problem{Setting: "CODEHUB_REDIS_URL", Why: unusable.Error(), Do: "give the server's address with the name and password it wants, or leave it unset: one server needs none"}
	}
	if err != nil {
		log.Warn("redis not reachable or in use by another installation; retrying", "err", err)
	}
	return b, nil
}

// tell publishes a notification for the other servers: a second way beside
// their own listening to the database.
func (s *server) tell(n postgres.Notification) {
	var p struct {
		ID    workspace.ID
		Owner string
	}
	if s.redis == nil || !s.leads.Load() || json.Unmarshal([]byte(n.Payload), &p) != nil {
		return
	}
	switch n.Channel {
	case postgres.ChannelSSE, postgres.ChannelDeleted:
		s.redis.PublishEvent(p.Owner, p.ID)
	case postgres.ChannelWake:
		s.redis.PublishWake(p.Owner, p.ID)
	}
}

// hearRedis brings what the leader published to who waits for it here.
func (s *server) hearRedis(ctx context.Context) error {
	return s.redis.Run(ctx, redisbus.Handler{Event: s.hub.Echo, Wake: s.hub.Wake})
}
