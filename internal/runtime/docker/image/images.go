// Package image chooses the images of workspaces: it pulls them, or waits for their builds, and
// reads and adds what a workspace needs to run one.
package image

import (
	"crypto/sha256"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/imagebuild"
)

// Config is what an installation decides about images; see docker.Config and docker.Settings.
type Config struct {
	DefaultImage, IDEImage string
	Builds                 *imagebuild.Builder
	Authorities            []byte
	DataDir, HostDataDir   string // empty: Docker copies the names of users
	Sudo                   bool
	RegistryAuthFile       string
	PullBytesPerSecond     int64
	PullTimeout            time.Duration
}

// Images are the images of a Docker Engine.
type Images struct {
	*engine.Engine
	cfg       Config
	pulls     pulls
	names     names
	runAs     remembered[string, RunAs]                        // by image ID
	trusted   remembered[[sha256.Size]byte, map[string][]byte] // digest of an image's authorities → trust.Files
	noDefault *health.Condition                                // the default image is missing
	noLogin   *health.Condition                                // the file with the logins at registries cannot be used, or is not protected
}

// New returns the images of a Docker Engine.
func New(e *engine.Engine, cfg Config) *Images {
	condition := func(c health.Config) *health.Condition {
		c.Log = e.Log
		return e.Conditions.New(c)
	}
	return &Images{
		Engine: e, cfg: cfg, names: newNames(cfg.DataDir, cfg.HostDataDir),
		pulls: pulls{rules: newPullRules(cfg), stuck: condition(health.Config{
			Name: "pulls", Failing: "image pulls are waiting for Docker's downloads", Resolved: "image pulls continue",
			Level: slog.LevelError, Remind: 10 * time.Minute,
		})},
		noDefault: condition(health.Config{
			Name: "default-image", Failing: "the default image is missing", Resolved: "the default image is there again", Level: slog.LevelWarn,
		}),
		noLogin: condition(health.Config{
			Name: "registry-login", Failing: "the file with the logins at registries is not in order", Resolved: "the file with the logins at registries is in order again",
			Level: slog.LevelWarn,
		}),
	}
}

// maxRemembered is how many values of one kind are kept. Users choose the images, and one takes
// up to a few MB.
const maxRemembered = 32

// remembered keeps what was read of the last images. The zero value is ready.
type remembered[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V
}

// get returns the value of key; false: it is not kept.
func (r *remembered[K, V]) get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.values[key]
	return v, ok
}

// put keeps a value. Once there are too many, it drops the others: they are read again.
func (r *remembered[K, V]) put(key K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil || len(r.values) >= maxRemembered {
		r.values = map[K]V{}
	}
	r.values[key] = v
}
