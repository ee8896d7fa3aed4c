// Package service holds what the API and the dashboard share: the settings of both, what they show
// of a workspace, and the texts of a request as a change.
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
