package replica

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestReplicaLifecycle(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	var stranger *Replica // of a command, which is not a server
	var disk atomic.Value
	disk.Store("full")
	r := New(Config{DB: db, Version: "v1", Log: slog.New(slog.DiscardHandler), Settings: Settings{Must: map[string]string{"A": "1"}},
		Health: func() Health {
			return Health{Backends: map[string]api.Breaker{"docker": {State: api.BreakerOpen}}, Conditions: []api.ServerCondition{{Name: "disk", Error: disk.Load().(string)}}}
		}})
	if err := r.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := db.Replicas(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != r.ID() || list[0].Version != "v1" || list[0].Hostname == "" || stranger.HealthOf(list[0]).Backends["docker"].State != api.BreakerOpen || stranger.HealthOf(list[0]).Conditions[0].Error != "full" {
		t.Fatalf("%v, %+v", err, list)
	}
	disk.Store("slow") // not yet stored
	if own, other := r.HealthOf(list[0]).Conditions[0].Error, stranger.HealthOf(list[0]).Conditions[0].Error; own != "slow" || other != "full" {
		t.Errorf("its own health is %q, want the present one; as seen by others %q, want the stored one", own, other)
	}
	first := list[0].SeenAt
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	harness.EventuallyWithin(t, time.Minute, "it reports again that it is alive", func() bool {
		list, err := db.Replicas(t.Context())
		return err == nil && list[0].SeenAt.After(first)
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := r.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	if list, err := db.Replicas(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v, %+v", err, list)
	}
}

func TestCompareSettings(t *testing.T) {
	t.Parallel()
	ours := Settings{Must: map[string]string{"A": "1", "B": "2"}, Should: map[string]string{"L": "5"}, DataDir: "/data"}
	with := func(change func(*postgres.Replica)) postgres.Replica {
		r := postgres.Replica{Hostname: "other", Alive: true, Settings: ours.recorded()}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		other          postgres.Replica
		refused, warns string // the setting
	}{
		"the same":             {other: with(func(*postgres.Replica) {})},
		"another archive":      {other: with(func(r *postgres.Replica) { r.Settings["A"] = "x" }), refused: "A"},
		"another limit":        {other: with(func(r *postgres.Replica) { r.Settings["L"] = "6" }), warns: "L"},
		"not known there":      {other: with(func(r *postgres.Replica) { delete(r.Settings, "A") })},
		"known only there":     {other: with(func(r *postgres.Replica) { r.Settings["C"] = "3" })},
		"dead":                 {other: with(func(r *postgres.Replica) { r.Settings["A"] = "x"; r.Alive = false })},
		"killed a moment ago":  {other: with(func(r *postgres.Replica) { r.Settings["A"] = "x"; r.Age = postgres.Present + 1 })},
		"ours, before a crash": {other: with(func(r *postgres.Replica) { r.Settings["A"] = "x"; r.Hostname = "me" })},
		"another on our host": {other: with(func(r *postgres.Replica) {
			r.Settings["A"], r.Settings[dataDir], r.Hostname = "x", "/data2", "me"
		}), refused: "A"},
	} {
		warnings, err := ours.compare("me", []postgres.Replica{c.other})
		var d *Differs
		switch {
		case errors.As(err, &d) != (c.refused != "") || d != nil && d.Setting != c.refused:
			t.Errorf("%s: %v", name, err)
		case len(warnings) > 0 != (c.warns != "") || len(warnings) > 0 && warnings[0].Setting != c.warns:
			t.Errorf("%s: %v", name, warnings)
		}
	}
}

func TestJoinWithDifferentSettings(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	var log harness.Log
	made := func(must, should, dir string) *Replica {
		return New(Config{DB: db, Log: log.Logger(), Settings: Settings{
			Must: map[string]string{"CODEHUB_ARCHIVE_URL": must}, Should: map[string]string{"MAX_RUNNING_GLOBAL": should}, DataDir: dir}})
	}
	if err := made("s3://a", "1", "/a").Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := made("s3://b", "1", "/b").Join(t.Context())
	var d *Differs
	if !errors.As(err, &d) || !strings.Contains(err.Error(), "s3://a") {
		t.Fatalf("%v", err)
	}
	if list, err := db.Replicas(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("who was refused is on the list: %v, %+v", err, list)
	}
	if err := made("s3://a", "2", "/c").Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "MAX_RUNNING_GLOBAL") {
		t.Errorf("not warned: %s", log.String())
	}
}

// An outage of the database is logged once.
func TestOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{}).DB
	var log harness.Log
	r := New(Config{DB: db, Log: log.Logger()})
	ctx, cancel := context.WithCancel(t.Context())
	db.Close()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	harness.EventuallyWithin(t, time.Minute, "the outage is logged", func() bool { return strings.Contains(log.String(), "level=WARN") })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 {
		t.Errorf("reported %d times: %s", n, log.String())
	}
}
