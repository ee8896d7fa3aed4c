package home

import (
	"cmp"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/helper"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

const offline = "unix:///none"

// newHomes returns the homes of a new installation, without a helper.
func newHomes(t *testing.T, host string, cfg Config, conditions *health.Monitor) *Homes {
	t.Helper()
	if host != offline {
		harness.NeedsDocker(t)
	}
	e, err := engine.New(engine.Config{Installation: uuid.NewString(), Host: host, Log: harness.Logger(t, 12), Conditions: conditions})
	check(t, err)
	t.Cleanup(func() { check(t, e.Close()) })
	cfg.DataDir = cmp.Or(cfg.DataDir, t.TempDir())
	cfg.HostDataDir = cmp.Or(cfg.HostDataDir, cfg.DataDir)
	return New(helper.New(e, "/none"), image.New(e, image.Config{}), cfg)
}

func newID() workspace.ID { return workspace.ID(uuid.NewString()) }

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
