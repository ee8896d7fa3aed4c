package main

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"codehub/internal/config"
	"codehub/internal/redistest"
)

// A Redis that is away is waited for; one that refuses stops the start with a
// line that names the setting and not the password.
func TestOpenRedis(t *testing.T) {
	t.Parallel()
	guarded := redistest.New(t, "--requirepass", "secret")
	gone := redistest.New(t)
	gone.Stop()
	for name, c := range map[string]struct {
		url, why, warns string
	}{
		"none":           {},
		"there":          {url: guarded.URL()},
		"away":           {url: gone.URL(), warns: "Redis is away"},
		"wrong password": {url: "redis://:secrets@" + guarded.Addr(), why: "refuses the name or password"},
		"no address":     {url: "redis://:secrets@host/notanumber", why: "no address of a Redis server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			b, err := openRedis(t.Context(), config.Config{RedisURL: c.url, SSEPrefix: "s", WakePrefix: "w", ActivityKey: "a"}, slog.New(slog.NewTextHandler(&log, nil)))
			if b != nil {
				defer b.Close()
			}
			var p *config.Problem
			switch {
			case c.why != "":
				if !errors.As(err, &p) || p.Setting != "CODEHUB_REDIS_URL" || !strings.Contains(p.Why, c.why) || strings.Contains(err.Error(), "secret") {
					t.Errorf("%v, want %q", err, c.why)
				}
			case err != nil || (b != nil) != (c.url != ""):
				t.Errorf("%v, %v", b, err)
			}
			if got := log.String(); !strings.Contains(got, c.warns) || (c.warns == "") != (got == "") || strings.Contains(got, "secret") {
				t.Errorf("said %q, want %q", got, c.warns)
			}
		})
	}
}
