package server

import (
	"context"

	"codehub/api"
	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/bus/redisbus"
	"codehub/internal/postgres"
	"codehub/internal/web/httpapi"
)

// backends are the circuit breakers of the backends, by name.
type backends map[string]*breaker.Breaker

// states returns the current state of each breaker.
func (b backends) states() map[string]api.Breaker {
	out := make(map[string]api.Breaker, len(b))
	for name, br := range b {
		out[name] = br.State()
	}
	return out
}

// metrics returns the metrics of all breakers.
func (b backends) metrics() breaker.Metrics {
	var all breaker.Metrics
	for _, br := range b {
		all = append(all, br)
	}
	return all
}

// troubles are the conditions that the dashboard shows to every user, with its
// names for them, most important first.
var troubles = []struct{ condition, shown string }{{"docker", "backend"}, {"wall", "wall"}, {"disk", "disk"}, {"data-disk", "data_disk"}, {"bucket", "bucket"}}

// trouble returns the problem that the dashboard shows to every user; empty: none.
func trouble(h *hold, conditions *health.Monitor) string {
	if h.reason() != "" {
		return "hold"
	}
	for _, t := range troubles {
		if conditions.Err(t.condition) != nil {
			return t.shown
		}
	}
	return ""
}

// missingImage returns the error of the images that workspaces need; empty: none.
func missingImage(conditions *health.Monitor) string {
	for _, name := range []string{"default-image", "ide"} {
		if err := conditions.Err(name); err != nil {
			return err.Error()
		}
	}
	return ""
}

// failing lists the conditions that fail, for the administrators' page.
func failing(conditions *health.Monitor) []api.ServerCondition {
	list := []api.ServerCondition{}
	for _, s := range conditions.States() {
		if s.Error != "" {
			list = append(list, api.ServerCondition{Name: s.Name, Since: s.Since.UTC(), Error: s.Error})
		}
	}
	return list
}

// readyChecks are the checks of /readyz in addition to the conditions. Only the database
// makes a server unready: without it no request can be answered.
func readyChecks(db *postgres.DB, redis *redisbus.Redis) []httpapi.Check {
	checks := []httpapi.Check{{Name: "database", Run: db.Ping}}
	if redis != nil { // also fails before it is subscribed
		checks = append(checks, httpapi.Check{Name: "redis", Advisory: true, Run: func(context.Context) error { return redis.Trouble() }})
	}
	return checks
}
