package sshgate

import (
	"fmt"
	"net"
	"strconv"

	"codehub/internal/base/setting"
)

// Settings are the settings of SSH, as codehub serve declares them.
type Settings struct {
	Listen         string `name:"ssh-listen" env:"CODEHUB_SSH_LISTEN" help:"Address to serve SSH on, like :2222 (default: none; codehub ssh works without)."`
	MaxConnections int    `name:"ssh-max-connections" env:"CODEHUB_SSH_MAX_CONNECTIONS" min:"1" max:"1000000" default:"2000" help:"Open SSH connections of all users."`
	MaxPerUser     int    `name:"ssh-max-connections-per-user" env:"CODEHUB_SSH_MAX_CONNECTIONS_PER_USER" min:"1" max:"1000000" default:"200" help:"Open SSH connections of one user."`
}

// Resolve checks the settings.
func (s *Settings) Resolve() error {
	if s.Listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(s.Listen)
	if n, perr := strconv.Atoi(port); err != nil || perr != nil || n < 0 || n > 65535 {
		return setting.Invalid("CODEHUB_SSH_LISTEN", fmt.Sprintf("%q is not an address to listen on", s.Listen), "give host:port with a port from 0 to 65535, like :2222")
	}
	return nil
}
