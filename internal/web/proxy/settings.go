package proxy

import (
	"time"

	"codehub/internal/running/ports"
)

// Settings limit the requests and WebSockets to workspaces, as codehub serve declares
// them.
type Settings struct {
	Ports ports.Settings `embed:""`

	RequestsPerUser int           `name:"max-requests-per-user" env:"CODEHUB_MAX_REQUESTS_PER_USER" min:"16" max:"1000000" default:"512" help:"Requests and WebSockets of one user to workspaces at a time."`
	IdleTimeout     time.Duration `name:"relay-idle-timeout" env:"CODEHUB_RELAY_IDLE_TIMEOUT" min:"1s" max:"720h" default:"1h" help:"How long a request or WebSocket to a workspace may transfer nothing."`
	NoShortWay      bool          `name:"no-short-way" env:"CODEHUB_NO_SHORT_WAY" help:"Serve and relay all requests by the libraries alone, more slowly."`
}
