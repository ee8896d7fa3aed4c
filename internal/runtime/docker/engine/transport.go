package engine

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/docker/go-connections/sockets"
	"github.com/docker/go-connections/tlsconfig"
	"github.com/moby/moby/client"

	"codehub/internal/base/breaker"
)

// probeMaxPause is short, because Docker is local and cheap to probe, and users
// wait for it.
const probeMaxPause = 5 * time.Second

// connect creates the Docker clients: one whose calls pass a circuit breaker, and
// one without for the breaker's own probes and for hijacked connections, which
// bypass the transport.
func (e *Engine) connect() error {
	opts := []client.Opt{client.FromEnv}
	host := e.Host
	if host != "" {
		opts = append(opts, client.WithHost(host))
	} else if host = os.Getenv(client.EnvOverrideHost); host == "" {
		host = client.DefaultDockerHost
	}
	var err error
	if e.Plain, err = client.New(opts...); err != nil {
		return err
	}
	next, err := dockerTransport(host)
	if err != nil {
		return err
	}
	e.idle = next
	e.Breaker = breaker.New(breaker.Config{
		Name: "engine", Probe: e.ping, MostPause: probeMaxPause, ProbeWithin: AskTimeout,
		Log: e.Log, Conditions: e.Conditions, Condition: "docker",
	})
	opts = append(opts, client.WithHTTPClient(&http.Client{
		Transport: fenced{e.Breaker.Transport(next)}, CheckRedirect: client.CheckRedirect,
	}))
	if next.TLSClientConfig != nil {
		opts = append(opts, client.WithScheme("https"))
	}
	e.API, err = client.New(opts...)
	return err
}

// dockerTransport builds a transport like the client's own, which cannot be
// wrapped.
func dockerTransport(host string) (*http.Transport, error) {
	u, err := client.ParseHostURL(host)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{MaxIdleConns: 6, IdleConnTimeout: 30 * time.Second}
	if certs := os.Getenv(client.EnvOverrideCertPath); certs != "" {
		t.TLSClientConfig, err = tlsconfig.Client(tlsconfig.Options{
			CAFile: filepath.Join(certs, "ca.pem"), CertFile: filepath.Join(certs, "cert.pem"), KeyFile: filepath.Join(certs, "key.pem"),
			InsecureSkipVerify: os.Getenv(client.EnvTLSVerify) == "", MinVersion: tls.VersionTLS12,
		})
		if err != nil {
			return nil, fmt.Errorf("configure TLS from %s: %w", client.EnvOverrideCertPath, err)
		}
	}
	return t, sockets.ConfigureTransport(t, u.Scheme, u.Host)
}

// ping calls an endpoint that a hanging Docker does not answer.
func (e *Engine) ping(ctx context.Context) error {
	_, err := e.Plain.ContainerList(ctx, client.ContainerListOptions{Limit: 1})
	return connectionError(err)
}

// connectionError returns err unless it is Docker's own response.
func connectionError(err error) error {
	if err == nil || !Unreachable(err) {
		return nil
	}
	return err
}

// AskTimeout limits inspecting one container while a page waits. It also
// prevents such a call from blocking all others: the Docker client's first call
// is waited for by the rest.
const AskTimeout = 10 * time.Second
