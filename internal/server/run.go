package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/base/memlimit"
	"codehub/internal/control/lease"
	"codehub/internal/gateway/inbound"
	"codehub/internal/gateway/origin"
	"codehub/internal/gateway/shortway"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/server/config"
	"codehub/internal/users/auth"
)

// run serves until ctx ends, then shuts down in order: it accepts no new requests,
// waits up to CODEHUB_SHUTDOWN_TIMEOUT for the open ones, then stops the other parts.
// It returns early with an error if a part fails.
func (s *server) run(ctx context.Context) error {
	if err := s.firstUser(ctx); err != nil {
		return err
	}
	behind, stopBehind := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBehind()
	requests, stopRequests := context.WithCancel(behind)
	defer stopRequests()

	g, gctx := errgroup.WithContext(behind)
	g.Go(func() error { return postgres.NewListener(s.dsn, s.log, s.conditions).Run(gctx, s.notified, s.gap) })
	g.Go(func() error { return s.auth.Run(gctx) })
	g.Go(func() error { return s.proxy.Run(gctx) })
	g.Go(func() error { return s.unsaved.Run(gctx, s.log, s.announceUnsaved) })
	g.Go(func() error { return s.coordinate(gctx) })
	g.Go(func() error { return s.self.Run(gctx) })
	g.Go(func() error { return s.flush.Run(gctx) })
	g.Go(func() error { return s.templates.Run(gctx) })
	g.Go(func() error { return s.bucket.Relay(gctx) })
	g.Go(func() error { return s.bucket.KeepKeys(gctx) })
	g.Go(func() error { return s.runtime.run(gctx) })
	g.Go(func() error { return s.buildImages(gctx, ctx) })
	g.Go(func() error { return s.forwardWakes(gctx) })
	if s.redis != nil {
		g.Go(func() error { return s.receiveFromRedis(gctx) })
	}
	g.Go(func() error { return s.housekeeping(gctx) })
	g.Go(func() error { return s.reserve.Run(gctx) })
	g.Go(func() error { memlimit.Release(gctx); return nil })
	g.Go(func() error { return s.hold.Run(gctx) })
	g.Go(func() error {
		building, end := context.WithCancel(gctx) // a build that ends is recorded while the database is there
		defer end()
		defer context.AfterFunc(ctx, end)()
		return s.builder.Run(building)
	})
	g.Go(func() error { return s.front.Run(gctx) })
	if s.numbers != nil {
		g.Go(func() error { return s.serveMetrics(gctx) })
	}
	if s.private != nil {
		g.Go(func() error { return s.private.Run(gctx) })
	}

	srv := s.cfg.Inbound.Server(s.http)
	srv.BaseContext = func(net.Listener) context.Context { return requests }
	srv.ErrorLog = httpErrors(s.log)
	srv.ConnContext = inbound.CountStreams(s.cfg.Front.Proxies.Contain)
	srv.ConnState = s.listener.ConnState
	plain := &shortway.Server{HTTP: srv, Serves: s.relays, Off: s.cfg.Proxy.NoShortWay}
	listener := plain.Listen(s.front.Listener)
	g.Go(func() error {
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve http: %w", err)
		}
		return nil
	})
	accepting, stopSSH := context.WithCancel(requests)
	defer stopSSH()
	if s.ssh != nil {
		g.Go(func() error { return s.gate.Serve(accepting, s.ssh) })
		s.log.Info("SSH is served", "listen", s.ssh.Addr().String(), "fingerprint", s.gate.HostFingerprint())
	}
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-gctx.Done():
		}
		s.log.Info("shutting down")
		s.drain(ctx, srv, plain, stopRequests, stopSSH)
		s.lastFlush(ctx)
		stopBehind()
		return nil
	})
	g.Go(func() error { notifySystemd(gctx, ctx.Done(), s.http); return nil })
	s.log.Info("codehub serves", "url", s.cfg.PublicURL.String(), "listen", s.front.Listener.Addr().String(), "version", s.cfg.Version)
	err := g.Wait()
	s.gitApps.Wait() // programs in workspaces ask for tokens until the end
	return err
}

// streamsEnd is how long event streams and followed logs, which do not end, may
// continue during a shutdown. Proxy.Shutdown ends WebSockets.
const streamsEnd = time.Second

func (s *server) drain(ctx context.Context, srv *http.Server, plain *shortway.Server, stopRequests, stopSSH context.CancelFunc) {
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ShutdownTimeout)
	defer cancel()
	end := time.AfterFunc(streamsEnd, func() { stopRequests(); s.continued.End() })
	defer end.Stop()
	stopSSH()
	var ways sync.WaitGroup
	ways.Go(func() {
		if err := s.proxy.Shutdown(sctx); err != nil {
			s.log.Warn("connections to workspaces closed before they ended", "err", err)
		}
	})
	ways.Go(func() {
		s.gate.Close(sctx)
		s.attacher.Close(sctx)
	})
	ways.Wait()
	var both errgroup.Group
	both.Go(func() error { return plain.Shutdown(sctx) })
	both.Go(func() error {
		err := srv.Shutdown(sctx)
		if err != nil {
			srv.Close()
		}
		return err
	})
	if err := both.Wait(); err != nil {
		s.log.Warn("requests closed before they ended", "err", err)
	}
	if err := s.continued.Wait(sctx); err != nil {
		s.log.Warn("event streams or WebSockets have not ended", "err", err)
	}
}

// relays reports whether requests for this host and target are for a workspace.
func (s *server) relays(host, target string) bool {
	switch s.cfg.Layout.Route(host).Kind {
	case origin.Workspace:
		return true
	case origin.Main:
		return s.cfg.Layout.PathMode() && strings.HasPrefix(target, "/w/")
	}
	return false
}

// coordinate runs the controller and the garbage collection while this process leads
// and codehub is not on hold.
func (s *server) coordinate(ctx context.Context) error {
	cfg, err := postgres.ConnConfig(s.dsn, "codehub-leader")
	if err != nil {
		return err
	}
	defer s.signIn.Wait()
	return lease.Run(ctx, lease.Config{Conn: cfg, Replica: s.self.ID(), Log: s.log, Conditions: s.conditions, Standby: s.ctrl.StandBy, Term: func(ctx context.Context, session *lease.Session) error {
		rows := postgres.NewController(session)
		if gap, led := session.Gap(); led && gap.Abs() > postgres.LeaderGap {
			if err := rows.RestartWaits(ctx); err != nil {
				return err
			}
			s.log.Warn("no server led; deletion and garbage collection delays restarted", "for", gap)
		}
		s.runtime.refresh()
		return s.leadTerm(runtime.WithFence(ctx, session.Alive), rows)
	}})
}

// leadTerm runs what the leader does. The checks of identities also run while codehub is on
// hold: a user whom the provider does not accept any more must not wait for an administrator.
func (s *server) leadTerm(ctx context.Context, rows *postgres.Controller) error {
	g, gctx := errgroup.WithContext(ctx)
	gctx, end := context.WithCancel(gctx)
	defer end()
	g.Go(func() error {
		defer end()
		return s.lead(gctx, rows)
	})
	g.Go(func() error { return s.signIn.Run(gctx) })
	return g.Wait()
}

func (s *server) lead(ctx context.Context, rows *postgres.Controller) error {
	s.leads.Store(rows)
	defer s.leads.CompareAndSwap(rows, nil) // a term that was abandoned ends after the next has begun
	return s.marks.Run(ctx, rows, func(ctx context.Context) error {
		g, gctx := errgroup.WithContext(ctx)
		gctx, end := context.WithCancel(gctx)
		defer end()
		g.Go(func() error {
			defer end() // the session is gone, or the term is over
			return s.ctrl.Run(gctx, rows)
		})
		g.Go(func() error { return s.garbage.Run(gctx, rows) })
		g.Go(func() error { return s.backups.Run(gctx) })
		g.Go(func() error { return s.drills.Run(gctx) })
		g.Go(func() error { return s.homeBackups.Run(gctx, rows) })
		g.Go(func() error { return s.ttl.Run(gctx, rows) })
		g.Go(func() error { return s.usage.Run(gctx, rows) })
		g.Go(func() error { return s.inside.Run(gctx, postgres.NewUsage(rows).Running) })
		return g.Wait()
	})
}

// notified handles a notification of the database.
func (s *server) notified(n postgres.Notification) {
	if n.Channel == postgres.ChannelUnsaved {
		s.unsaved.Receive(n.Payload)
		return
	}
	s.hub.Handle(n.Channel, n.Payload)
	s.publish(n)
}

// announceUnsaved passes reports of unsaved files to the other servers.
func (s *server) announceUnsaved(ctx context.Context, payloads []string) error {
	return s.db.Notify(ctx, postgres.ChannelUnsaved, payloads)
}

// gap is called after notifications may have been missed.
func (s *server) gap() {
	s.auth.InvalidateAll()
	s.hub.Gap()
}

func (s *server) forwardWakes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.hub.Wakes():
			s.marks.Wake()
			s.ctrl.Wake()
			s.homeBackups.Wake()
		}
	}
}

// Bounds of the removal of old audit entries in one run: entries of a batch, and
// batches.
const (
	auditBatch   = 5000
	auditBatches = 200
)

// housekeeping removes sessions and tickets that have expired, and old entries of the
// audit log.
func (s *server) housekeeping(ctx context.Context) error {
	t := time.NewTicker(time.Hour)
	defer t.Stop()
	for {
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		n, err := s.db.DeleteExpiredSessions(bounded)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("remove expired sessions failed", "err", err)
		} else if n > 0 {
			s.log.Debug("expired sessions removed", "count", n)
		}
		if _, err := s.db.DeleteExpiredTickets(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove expired tickets failed", "err", err)
		}
		if err := s.db.DeleteExpiredProgramLogins(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove expired logins of programs failed", "err", err)
		}
		if err := s.db.DeleteExpiredPasskeyAttempts(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove expired attempts with passkeys failed", "err", err)
		}
		if err := s.db.DeleteExpiredLogouts(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove expired logout tokens failed", "err", err)
		}
		if err := s.db.DeleteOldNameFailures(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove old failed logins failed", "err", err)
		}
		if err := s.db.DeleteOldNotices(bounded); err != nil && ctx.Err() == nil {
			s.log.Warn("remove old notices failed", "err", err)
		}
		cancel()
		s.trimAudit(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// trimAudit removes old entries of the audit log, in batches that leave time for other
// transactions.
func (s *server) trimAudit(ctx context.Context) {
	keep := s.cfg.Audit.Keep
	for i := 0; keep > 0 && i < auditBatches && ctx.Err() == nil; i++ {
		bounded, cancel := context.WithTimeout(ctx, time.Minute)
		n, err := s.db.DeleteOldAudit(bounded, keep, auditBatch)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.log.Warn("remove old audit entries failed", "err", err)
		}
		if err != nil || n < auditBatch {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// firstUser creates the administrator of CODEHUB_ADMIN_PASSWORD at the first start, or
// prints how to create one on the setup page.
func (s *server) firstUser(ctx context.Context) error {
	needed, err := s.auth.SetupNeeded(ctx)
	if err != nil {
		return fmt.Errorf("look for users: %w", err)
	}
	if !needed {
		// An earlier version, or a command, has added them.
		if n, err := s.db.EnabledUserCount(ctx); err == nil && n > 1 && s.cfg.OneAccount() {
			s.log.Warn("several accounts on localhost, where forwarded ports can take over sessions", "accounts", n, "see", "docs/security.md")
		}
		return nil
	}
	if s.cfg.AdminPassword != "" {
		if _, err := s.auth.EnsureAdmin(ctx, s.cfg.AdminPassword); err != nil {
			return fmt.Errorf("create the user admin from CODEHUB_ADMIN_PASSWORD: %w", err)
		}
		announce(os.Stdout, s.cfg, "")
		return nil
	}
	code, err := s.auth.SetupCode(ctx)
	if err != nil {
		return fmt.Errorf("create the setup code: %w", err)
	}
	announce(os.Stdout, s.cfg, code)
	return nil
}

// announce prints how to log in for the first time; without a code as admin. It does not depend
// on the level of the log, but with a log in JSON each line is JSON, too.
func announce(w io.Writer, cfg config.Config, code string) {
	setup := cfg.PublicURL.String() + "/setup?code=" + code
	switch log := slog.New(slog.NewJSONHandler(w, nil)); {
	case cfg.LogFormat == "json" && code == "":
		log.Info("administrator created from CODEHUB_ADMIN_PASSWORD", "user", auth.AdminUsername, "url", cfg.PublicURL.String())
	case cfg.LogFormat == "json":
		log.Warn("no account exists, open the address to create the first one", "url", setup)
	case code == "":
		fmt.Fprintf(w, "\n  codehub is at %s\n  Log in as admin, with the password of CODEHUB_ADMIN_PASSWORD.\n\n", cfg.PublicURL)
	default:
		fmt.Fprintf(w, "\n  codehub is at %s\n  No account exists yet. Open this address, which works once, to create yours:\n\n      %s\n\n", cfg.PublicURL, setup)
	}
}

// httpErrors is the log of net/http for errors of connections, such as clients that
// hang up. They need no attention, so their level is debug.
func httpErrors(l *slog.Logger) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelDebug)
}
