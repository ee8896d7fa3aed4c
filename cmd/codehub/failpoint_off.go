//go:build !failpoint

package main

import "codehub/internal/workspace"

// failpoint is nil in the server that people run: nobody is told of the steps
// of an operation.
func failpoint() func(id workspace.ID, step string) { return nil }
