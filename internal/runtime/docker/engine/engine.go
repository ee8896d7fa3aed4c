// Package engine is one Docker Engine as an installation uses it: the connection, and the
// names, labels and errors of what the installation creates there. All parts of the runtime
// share it.
package engine

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/sync/semaphore"

	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
)

// Config says which Docker Engine, and for which installation.
type Config struct {
	Installation string
	Host         string            // empty: DOCKER_HOST, or else the default socket
	ExtraLabels  map[string]string // added to everything that is created
	Log          *slog.Logger
	Conditions   *health.Monitor
}

// Engine is a Docker Engine.
type Engine struct {
	Config
	locks
	API     *client.Client // uses the breaker
	Plain   *client.Client // without the breaker; see connect
	Breaker *breaker.Breaker
	Names   Names
	Now     func() time.Time

	idle   *http.Transport
	known  atomic.Value        // of Features
	turns  *semaphore.Weighted // see turn
	starts *semaphore.Weighted // see StartsTurn
}

// New returns an Engine. It does not call Docker.
func New(cfg Config) (*Engine, error) {
	e := &Engine{
		Config: cfg, Names: namesOf(cfg.Installation), Now: time.Now,
		turns: semaphore.NewWeighted(allShares), starts: semaphore.NewWeighted(allShares),
	}
	if err := e.connect(); err != nil {
		return nil, fmt.Errorf("configure the Docker client: %w", err)
	}
	return e, nil
}

// Close closes the connections to Docker.
func (e *Engine) Close() error {
	e.Breaker.Close()
	e.idle.CloseIdleConnections()
	return e.Plain.Close()
}
