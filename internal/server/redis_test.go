package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/bus"
	"codehub/internal/bus/redisbus"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/redistest"
	"codehub/internal/workspace"
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
		"away":           {url: gone.URL(), warns: "redis not reachable"},
		"wrong password": {url: "redis://:secrets@" + guarded.Addr(), why: "refuses the name or password"},
		"no address":     {url: "redis://:secrets@host/notanumber", why: "no address of a Redis server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			b, err := openRedis(t.Context(), config.Config{RedisURL: c.url, Redis: redisbus.Settings{SSEPrefix: "s", WakePrefix: "w", ActivityKey: "a"}}, "i", nil, slog.New(slog.NewTextHandler(&log, nil)))
			if b != nil {
				defer b.Close()
			}
			var p *setting.Problem
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

// What the leader hears from the database the other servers hear of by Redis;
// what a follower hears it keeps to itself.
func TestLeaderPublishesToRedis(t *testing.T) {
	t.Parallel()
	r := redistest.New(t)
	const owner, id = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
	serve := func() (s *server, heard chan string) {
		log := slog.New(slog.DiscardHandler)
		b, err := openRedis(t.Context(), config.Config{RedisURL: r.URL(), Redis: redisbus.Settings{SSEPrefix: "s", WakePrefix: "w", ActivityKey: "a"}}, "i", nil, log)
		if err != nil {
			t.Fatal(err)
		}
		s, heard = &server{parts: parts{redis: b}, hub: bus.New(bus.Config{Log: log})}, make(chan string, 1000)
		s.hub.Observe(bus.Observer{Changed: func(owner string, id workspace.ID) { heard <- owner + " " + string(id) }})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.receiveFromRedis(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := errors.Join(<-done, b.Close()); err != nil {
				t.Error(err)
			}
		})
		harness.Await(t, time.Minute, "subscribed", b.Trouble, func(trouble error) bool { return trouble == nil })
		return s, heard
	}
	leader, _ := serve()
	follower, heard := serve()
	leader.leads.Store(&postgres.Controller{})
	// After this one no wake of the beginning is on its way.
	awaitMessage(t, follower.hub.Wakes(), func() { leader.redis.PublishWake("", "") })
	payload := `{"id" : "` + id + `", "owner" : "` + owner + `"}`
	for _, channel := range []string{postgres.ChannelSSE, postgres.ChannelDeleted} {
		got := awaitMessage(t, heard, func() { leader.notified(postgres.Notification{Channel: channel, Payload: payload}) })
		if got != owner+" "+id {
			t.Errorf("%s: heard %s", channel, got)
		}
	}
	awaitMessage(t, follower.hub.Wakes(), func() { leader.notified(postgres.Notification{Channel: postgres.ChannelWake, Payload: payload}) })

	_, heardByOther := serve()
	follower.notified(postgres.Notification{Channel: postgres.ChannelSSE, Payload: payload})
	<-heard // its own
	got := awaitMessage(t, heardByOther, func() {
		leader.notified(postgres.Notification{Channel: postgres.ChannelSSE, Payload: `{"id" : "` + owner + `", "owner" : "` + owner + `"}`})
	})
	if got != owner+" "+owner {
		t.Errorf("heard %s of a follower", got)
	}
}

// awaitMessage sends a message until it is received: Redis' messages may be lost.
func awaitMessage[T any](t *testing.T, from <-chan T, send func()) T {
	t.Helper()
	for end := time.Now().Add(harness.Patience); time.Now().Before(end); {
		send()
		select {
		case got := <-from:
			return got
		case <-time.After(5 * time.Second):
		}
	}
	t.Fatal("no message")
	panic("unreachable")
}
