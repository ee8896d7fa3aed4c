package signin

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
)

const (
	// parallel is how many identities of a provider are checked at the same time. No more
	// are claimed, so that the check of each begins at once.
	parallel = 8
	// checkTimeout bounds a check with the recording of its result. It is well below the
	// time for which an identity is claimed.
	checkTimeout = 20 * time.Second
	// recordPause is the time between two attempts to record a result.
	recordPause = 200 * time.Millisecond
	// batch is how many identities of removed providers are ended at once.
	batch = 16
)

// Run asks the providers, until ctx ends, whether they still accept the users, each at least once in
// the interval. It runs on the leader; a former leader and its successor never check an
// identity at the same time. Providers do not wait for each other. Checks that have begun
// when ctx ends continue, see Wait.
func (s *Service) Run(ctx context.Context) error {
	var g errgroup.Group
	g.Go(func() error { s.repeat(ctx, s.foreign, s.endForeign); return nil })
	for _, p := range s.providers {
		g.Go(func() error {
			s.repeat(ctx, p.checks, func(ctx context.Context) error { return s.check(ctx, p) })
			return nil
		})
	}
	return g.Wait()
}

// Wait waits, after Run has returned, for the checks that it has begun. A provider may have
// replaced a refresh token already, and the new one must be stored.
func (s *Service) Wait() { s.begun.Wait() }

// repeat passes over the identities until ctx ends, and reports errors in the condition.
func (s *Service) repeat(ctx context.Context, c *health.Condition, pass func(context.Context) error) {
	t := time.NewTicker(pause(s.cfg.Interval))
	defer t.Stop()
	defer c.Reset()
	for {
		err := pass(ctx)
		if ctx.Err() != nil {
			return
		}
		c.Set(err)
		select {
		case <-ctx.Done():
			return
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

// check checks all identities of a provider that are due. It returns the errors of the
// database, and the last one of a provider that does not respond.
func (s *Service) check(ctx context.Context, p *provider) error {
	for ctx.Err() == nil {
		due, err := s.cfg.Store.ClaimIdentities(ctx, []string{p.Issuer}, age(s.cfg.Interval), parallel)
		if err != nil {
			return err
		}
		if len(due) == 0 {
			break
		}
		results := make(chan error, len(due))
		for _, d := range due {
			s.begun.Go(func() { results <- s.checkOne(ctx, p, d) })
		}
		for range due {
			select {
			case one := <-results:
				err = errors.Join(err, one)
			case <-ctx.Done():
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
	return p.failing()
}

func (s *Service) issuers() []string {
	list := make([]string, len(s.providers))
	for i, p := range s.providers {
		list[i] = p.Issuer
	}
	return list
}

// checkOne asks a provider about one identity, and records the answer, also if ctx ends
// meanwhile. The error is the database's.
func (s *Service) checkOne(ctx context.Context, p *provider, d postgres.DueIdentity) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	asked, cancelAsked := context.WithTimeout(ctx, requestTimeout)
	defer cancelAsked()
	who, err := p.refresh(asked, d)
	end := func(why postgres.Suspension, reason string) error {
		s.log.InfoContext(ctx, "identity ended", "user", d.UserID, "provider", p.ID, "reason", reason)
		return record(ctx, func() error { return s.cfg.Store.EndIdentity(ctx, d, why) })
	}
	if errors.Is(err, errRefused) {
		p.setFailing(nil)
		return end(postgres.SuspendedRefused, string(postgres.SuspendedRefused))
	}
	p.setFailing(err)
	switch {
	case err != nil:
		return record(ctx, func() error { return s.cfg.Store.IdentityUnreachable(ctx, d, who.claims.RefreshToken, s.cfg.Grace) })
	case who.allowed:
		p.accept()
		return record(ctx, func() error { return s.cfg.Store.ConfirmIdentity(ctx, d, who.claims) })
	}
	// What a wrong setting could have caused can be undone.
	switch final := p.reject(); {
	case !who.reported:
		return end(postgres.SuspendedRefused, "the provider reported no groups")
	case !final:
		return end(postgres.SuspendedRefused, "in no allowed group, as the user before")
	}
	return end(postgres.SuspendedNotAllowed, string(postgres.SuspendedNotAllowed))
}

// record stores the result of a check, and tries again until ctx ends: a new refresh token that
// is not stored is lost, and the provider would refuse the former one.
func record(ctx context.Context, store func() error) error {
	for {
		err := store()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(recordPause):
		}
	}
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
