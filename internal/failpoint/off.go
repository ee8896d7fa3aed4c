//go:build !failpoint

// Package failpoint stops a server at a chosen step of an operation, for tests. It
// does so only in a binary built with -tags failpoint.
package failpoint

import "codehub/internal/workspace"

// Step returns nil: this binary was built without -tags failpoint.
func Step() func(id workspace.ID, step string) { return nil }
