package server

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"codehub/internal/postgres"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness/fixture"
)

// Servers that start at the same time on an empty database present the same host key: a client
// that a load balancer sends to another server would otherwise refuse it.
func TestSSHHostKeyIsTheSameOnEveryServer(t *testing.T) {
	t.Parallel()
	database := fixture.NewDatabase(t, postgres.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var addresses [2]string
	servers := twoServers(t, database, func(i int) string {
		address, err := proc.FreeAddress()
		try(t, err)
		addresses[i] = address
		return "CODEHUB_SSH_LISTEN=" + address
	})
	for _, s := range servers {
		try(t, s.Launch())
	}
	var fingerprints [2]string
	for i, s := range servers {
		try(t, s.AwaitReady(ctx))
		fingerprints[i] = hostKey(t, addresses[i])
	}
	if fingerprints[0] != fingerprints[1] {
		t.Errorf("the servers present different host keys: %q", fingerprints)
	}
}

// hostKey returns the fingerprint of the host key that an SSH server presents.
func hostKey(t *testing.T, address string) (fingerprint string) {
	t.Helper()
	seen := errors.New("the host key is known")
	c, err := ssh.Dial("tcp", address, &ssh.ClientConfig{Timeout: time.Minute, HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
		fingerprint = ssh.FingerprintSHA256(key)
		return seen
	}})
	if err == nil {
		c.Close()
	}
	if fingerprint == "" {
		t.Fatalf("%s presented no host key: %v", address, err)
	}
	return fingerprint
}
