//go:build !linux

package proxy

import (
	"net"
	"time"
)

// setUserTimeout is for systems without the option: there, keep-alive alone
// finds who is gone.
func setUserTimeout(*net.TCPConn, time.Duration) error { return nil }
