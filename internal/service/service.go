// Package service holds the settings and interfaces that the API and the dashboard share.
package service

import (
	"context"
	"io"

	"codehub/internal/workspace"
)

// Logs reads what a workspace's container printed; runtime.Runtime implements it.
type Logs interface {
	Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error
}
