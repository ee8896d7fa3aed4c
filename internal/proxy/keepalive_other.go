//go:build !linux

package proxy

import (
	"net"
	"time"
)

// setUserTimeout does nothing on systems without the option; keep-alive probes
// still detect lost clients.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
