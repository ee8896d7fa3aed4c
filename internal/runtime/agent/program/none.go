//go:build !agent

package program

import "io/fs"

// Only make build sets the tag agent, after it has built the agent. So an executable never has
// an agent of another version or platform.
func compressed() ([]byte, error) { return nil, fs.ErrNotExist }
