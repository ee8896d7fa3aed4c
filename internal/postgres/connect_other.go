//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// limitUnanswered does nothing where the socket option does not exist; the
// keep-alive still finds a peer that is gone.
func limitUnanswered(syscall.RawConn, time.Duration) error { return nil }
