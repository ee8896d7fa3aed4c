package redisbus

import (
	"fmt"
	"strings"

	"codehub/internal/base/setting"
)

// Settings are the names that codehub uses in Redis, as codehub serve declares them.
type Settings struct {
	SSEPrefix   string `name:"redis-channel-sse-prefix" env:"CODEHUB_REDIS_CHANNEL_SSE_PREFIX,REDIS_CHANNEL_SSE_PREFIX" default:"codehub:sse" help:"Prefix of the Redis channels for events."`
	WakePrefix  string `name:"redis-channel-wake-prefix" env:"CODEHUB_REDIS_CHANNEL_WAKE_PREFIX,REDIS_CHANNEL_WAKE_PREFIX" default:"codehub:wake" help:"Prefix of the Redis channels that start a tick."`
	ActivityKey string `name:"redis-activity-key" env:"CODEHUB_REDIS_ACTIVITY_KEY" default:"codehub:activity" help:"Redis sorted set for activity."`
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	for _, name := range []struct{ setting, v string }{
		{"REDIS_CHANNEL_SSE_PREFIX", s.SSEPrefix}, {"REDIS_CHANNEL_WAKE_PREFIX", s.WakePrefix}, {"CODEHUB_REDIS_ACTIVITY_KEY", s.ActivityKey},
	} {
		if name.v == "" || len(name.v) > 200 || strings.ContainsAny(name.v, " *?[]\\\r\n") {
			return setting.Invalid(name.setting, fmt.Sprintf("%q is not a valid name of a channel or key", name.v), "give a name without spaces and wildcards, like codehub:sse")
		}
	}
	return nil
}
