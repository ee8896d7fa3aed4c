package signin

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
)

const (
	// batch is how many identities are claimed at once, and parallel how many are checked at
	// the same time. A batch takes less than the time for which its identities are claimed.
	batch    = 16
	parallel = 8
)

// Run asks the providers, until ctx ends, whether they still accept the users, each at least once in
// the interval. It runs on the leader; a former leader and its successor never check an
// identity at the same time.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(pause(s.cfg.Interval))
	defer t.Stop()
	defer s.checks.Reset()
	for {
		err := s.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.checks.Set(err)
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// pause and age divide the interval: an identity is checked when its last check is age old,
// which is noticed after pause, so that the interval is kept.
func pause(interval time.Duration) time.Duration {
	return min(max(interval/10, 100*time.Millisecond), 5*time.Second)
}

func age(interval time.Duration) time.Duration { return interval - 2*pause(interval) }

// check checks all identities that are due. It returns the errors of the database, and the
// last one of each provider that does not respond.
func (s *Service) check(ctx context.Context) error {
	if err := s.endForeign(ctx); err != nil || len(s.providers) == 0 {
		return err
	}
	for ctx.Err() == nil {
		due, err := s.cfg.Store.ClaimIdentities(ctx, s.issuers(), age(s.cfg.Interval), batch)
		if err != nil {
			return err
		}
		if len(due) == 0 {
			break
		}
		errs := make([]error, len(due))
		var g errgroup.Group
		g.SetLimit(parallel)
		for i, d := range due {
			g.Go(func() error { errs[i] = s.checkOne(ctx, d); return nil })
		}
		_ = g.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	var failing error
	for _, p := range s.providers {
		failing = errors.Join(failing, p.failing())
	}
	return failing
}

func (s *Service) issuers() []string {
	list := make([]string, len(s.providers))
	for i, p := range s.providers {
		list[i] = p.Issuer
	}
	return list
}

// checkOne asks a provider about one identity, and records the answer. The error is the
// database's.
func (s *Service) checkOne(ctx context.Context, d postgres.DueIdentity) error {
	var p *provider
	for _, of := range s.providers {
		if of.Issuer == d.Issuer {
			p = of
		}
	}
	asked, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	who, err := p.refresh(asked, d)
	if ctx.Err() != nil {
		return nil // the term is over: another server asks
	}
	if errors.Is(err, errRefused) {
		p.setFailing(nil)
	} else {
		p.setFailing(err)
	}
	switch {
	case errors.Is(err, errRefused):
		s.log.InfoContext(ctx, "identity ended", "user", d.UserID, "provider", p.ID, "reason", string(postgres.SuspendedRefused))
		return s.cfg.Store.EndIdentity(ctx, d, postgres.SuspendedRefused)
	case err != nil:
		return s.cfg.Store.IdentityUnreachable(ctx, d, s.cfg.Grace)
	case !who.allowed:
		s.log.InfoContext(ctx, "identity ended", "user", d.UserID, "provider", p.ID, "reason", string(postgres.SuspendedNotAllowed))
		return s.cfg.Store.EndIdentity(ctx, d, postgres.SuspendedNotAllowed)
	}
	return s.cfg.Store.ConfirmIdentity(ctx, d, who.claims)
}

// endForeign ends the identities of issuers that the settings no longer name.
func (s *Service) endForeign(ctx context.Context) error {
	for ctx.Err() == nil {
		list, err := s.cfg.Store.ForeignIdentities(ctx, s.issuers(), batch)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, d := range list {
			if err := s.cfg.Store.EndIdentity(ctx, d, postgres.SuspendedRefused); err != nil {
				return err
			}
			s.log.InfoContext(ctx, "identity ended", "user", d.UserID, "issuer", d.Issuer, "reason", "the settings do not name its issuer")
		}
	}
	return nil
}
