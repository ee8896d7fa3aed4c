package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"golang.org/x/sync/errgroup"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
)

// Config configures Open.
type Config struct {
	Settings // resolved and checked
	// Names are the hosts that users open, with * for any label.
	Names []string
	// Secure returns the https origin of a host that a plain http request asks for. It
	// ignores the host's port. Hosts that are not codehub's are not ok.
	Secure func(host string) (origin string, ok bool)
	// Limit bounds the connections of the plain http listener; optional.
	Limit      func(net.Listener) net.Listener
	Log        *slog.Logger
	Conditions *health.Monitor // may be nil
}

// Front accepts the connections of clients. Run must run while it serves.
type Front struct {
	// Listener accepts the connections of clients, with TLS if the settings say so.
	Listener net.Listener

	cfg          Config
	certificates certificates // or nil
	redirect     net.Listener // or nil
}

// certificates provides the certificates of TLS.
type certificates interface {
	tlsConfig() *tls.Config
	// run keeps them up to date until ctx ends.
	run(ctx context.Context) error
}

// Open returns a Front that accepts from l. An error that an administrator can correct in
// the settings is a *setting.Problem.
func Open(cfg Config, l net.Listener) (*Front, error) {
	f := &Front{cfg: cfg, Listener: cfg.proxyProtocol(l)}
	if cfg.RedirectListen != "" {
		redirect, err := net.Listen("tcp", cfg.RedirectListen)
		if err != nil {
			return nil, setting.Invalid("CODEHUB_REDIRECT_LISTEN", err.Error(), "free the port, or give another one")
		}
		if cfg.Limit != nil {
			redirect = cfg.Limit(redirect)
		}
		f.redirect = cfg.proxyProtocol(redirect)
	}
	if cfg.TLS() {
		var err error
		if f.certificates, err = f.open(); err != nil {
			f.Close()
			return nil, err
		}
		secured := f.certificates.tlsConfig()
		secured.MinVersion = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[cfg.MinVersion]
		secured.NextProtos = append([]string{"h2", "http/1.1"}, secured.NextProtos...)
		f.Listener = tls.NewListener(f.Listener, secured)
	}
	return f, nil
}

func (f *Front) open() (certificates, error) {
	if !f.cfg.ACME {
		return openFiles(f.cfg.Settings, f.cfg.Names, f.cfg.Log, f.cfg.Conditions)
	}
	return openACME(f.cfg, f.RedirectAddr())
}

func (c *Config) proxyProtocol(l net.Listener) net.Listener {
	if c.ProxyProtocol {
		return c.Proxies.ProxyProtocol(l)
	}
	return l
}

// RedirectAddr returns the address of the plain http listener, nil without one.
func (f *Front) RedirectAddr() net.Addr {
	if f.redirect == nil {
		return nil
	}
	return f.redirect.Addr()
}

// Run serves the plain http listener and keeps the certificates up to date until ctx
// ends.
func (f *Front) Run(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	if f.certificates != nil {
		g.Go(func() error { return f.certificates.run(gctx) })
	}
	if f.redirect != nil {
		srv := redirectServer(f.cfg.Secure)
		if a, ok := f.certificates.(*acme); ok {
			srv.Handler = a.challenges(srv.Handler)
		}
		srv.ErrorLog = slog.NewLogLogger(f.cfg.Log.Handler(), slog.LevelDebug)
		g.Go(func() error {
			if err := srv.Serve(f.redirect); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("redirect http to https: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-gctx.Done()
			_ = srv.Close() // ends the listener; clients repeat a redirect
			return nil
		})
	}
	return g.Wait()
}

// Close closes the plain http listener. The caller of Open closes the other one.
func (f *Front) Close() {
	if f.redirect != nil {
		_ = f.redirect.Close() // Run may have closed it
	}
}
