package gitapps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/gitaccess"
	"codehub/internal/workspace"
)

const (
	// margin is how long before its end a token is refreshed; one of a short life after half of it.
	margin = 5 * time.Minute
	// usable is how long a token has to be valid to be used although its refresh fails or takes long.
	usable = 15 * time.Second
	// patience is how long a request waits for a refresh if it can use the former token.
	patience = 3 * time.Second
	// refreshTimeout bounds a refresh, which goes on if the request that began it ends.
	refreshTimeout = 35 * time.Second
	// busyPause is the time between two attempts while another server refreshes.
	busyPause = 100 * time.Millisecond
	// failurePause is how long a failure of a provider is remembered.
	failurePause = 5 * time.Second
	// rejectedAge is the least age of a token that is refreshed because a server has rejected it.
	rejectedAge = time.Minute
)

// failed is the last failure of a provider.
type failed struct {
	err error
	at  time.Time
}

// Fresh returns the tokens of a connection, refreshed if the access token expires soon, or if a
// server has rejected the one with the digest rejected (gitaccess.Digest). The former token is used
// as long as it is valid and the provider does not respond. Errors are for users.
func (s *Service) Fresh(ctx context.Context, c postgres.GitTokens, rejected string) (gitaccess.Tokens, error) {
	g, err := s.Store.GitGrant(ctx, c.ID)
	if err != nil {
		return gitaccess.Tokens{}, err
	}
	app, known := s.App(g.Provider)
	t, err := s.open(app, g)
	if err != nil {
		return t, err
	}
	refused := rejected != "" && rejected == gitaccess.Digest(t.Access)
	old := g.Age >= rejectedAge || g.Age < 0 // the clock was set back
	soon := g.ValidFor != nil && *g.ValidFor < min(margin, max((*g.ValidFor+g.Age)/2, usable))
	if !soon && !(refused && old) {
		return t, nil
	}
	valid := !refused && (g.ValidFor == nil || *g.ValidFor > usable)
	switch {
	case !known && valid:
		return t, nil
	case !known:
		return t, message(workspace.CodeForbidden, "The connection to %s has expired, and the server has no app %q any more. Ask an administrator.", g.Host, g.Provider)
	case g.Error == api.GitRevoked:
		return t, s.explain(app, errRevoked)
	case g.Refresh == nil:
		if refused {
			// Other causes than an end of the token make servers reject it.
			_, err := app.login(ctx, t.Access)
			valid = !errors.Is(err, errRevoked)
		}
		if valid {
			return t, nil
		}
		s.record(ctx, g, api.GitRevoked)
		return t, s.explain(app, errRevoked)
	}
	s.begun.Add(1)
	result := s.refreshes.DoChan(g.ID, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refreshTimeout)
		defer cancel()
		return nil, s.refresh(ctx, app, g)
	})
	finished := make(chan error, 1)
	go func() { r := <-result; s.begun.Done(); finished <- r.Err }()
	var late <-chan time.Time
	if valid {
		late = time.After(s.patience)
	}
	select {
	case err = <-finished:
	case <-late:
		return t, nil
	case <-ctx.Done():
		return t, ctx.Err()
	}
	if err != nil {
		if valid && !errors.Is(err, errRevoked) {
			return t, nil
		}
		return t, s.explain(app, err)
	}
	if g, err = s.Store.GitGrant(ctx, c.ID); err != nil {
		return t, err
	}
	return s.open(app, g)
}

// open decrypts the tokens of a connection.
func (s *Service) open(app *App, g postgres.GitGrant) (gitaccess.Tokens, error) {
	t, err := s.Access.Open(g.GitTokens)
	if t.Username = "oauth2"; app != nil {
		t.Username = app.kind.username
	}
	return t, err
}

// record stores why a connection does not work, for the account page.
func (s *Service) record(ctx context.Context, g postgres.GitGrant, reason string) {
	if g.Error == reason {
		return
	}
	if _, err := s.Store.RefreshGit(ctx, g.ID, g.ChangedAt, func(postgres.GitGrant) (postgres.GitRefreshed, error) {
		return postgres.GitRefreshed{Error: reason}, nil
	}); err != nil {
		s.Log.WarnContext(ctx, "the error of a git connection was not recorded", "err", err)
	}
}

// refresh replaces the tokens of a connection, unless another server does.
func (s *Service) refresh(ctx context.Context, app *App, g postgres.GitGrant) error {
	if err := s.pausing(app); err != nil {
		return err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return errors.New("too many connections are refreshed at the same time")
	}
	if err := s.pausing(app); err != nil { // the provider has failed meanwhile
		return err
	}
	for {
		var refused error
		busy, err := s.Store.RefreshGit(ctx, g.ID, g.ChangedAt, func(g postgres.GitGrant) (postgres.GitRefreshed, error) {
			out, err := s.renew(ctx, app, g)
			refused = err
			switch {
			case errors.Is(err, errRevoked):
				return postgres.GitRefreshed{Error: api.GitRevoked}, nil
			case errors.Is(err, errClient):
				return postgres.GitRefreshed{Error: api.GitMisconfigured}, nil
			case err != nil:
				return postgres.GitRefreshed{Error: api.GitUnavailable}, nil
			}
			return out, nil
		})
		switch {
		case refused != nil:
			s.Log.WarnContext(ctx, "git connection was not refreshed", "app", app.ID, "user", g.UserID, "err", refused)
			if !errors.Is(refused, errRevoked) {
				s.setPausing(app, refused)
			}
			return refused
		case err != nil || !busy:
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return fmt.Errorf("another server refreshes the connection: %w", ctx.Err())
		}
	}
}

// renew asks the provider for new tokens, and seals them.
func (s *Service) renew(ctx context.Context, app *App, g postgres.GitGrant) (out postgres.GitRefreshed, err error) {
	old, err := s.Access.Open(g.GitTokens)
	if err != nil {
		return out, err
	}
	if _, err := s.Keys.Seal(nil, ""); err != nil { // before the provider ends the old tokens
		return out, err
	}
	t, err := app.renew(ctx, old.Refresh)
	if err != nil {
		return out, err
	}
	c, err := s.Access.Seal(g.GitTokens, gitaccess.Tokens{Access: t.access, Refresh: t.refresh})
	return postgres.GitRefreshed{Access: c.Access, Refresh: c.Refresh, Lifetime: t.lifetime}, err
}

// pausing returns the failure of the provider a moment ago: all requests of a slow provider would
// wait one after the other.
func (s *Service) pausing(app *App) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.failed[app.ID]; f.err != nil && time.Since(f.at) < s.failurePause {
		return f.err
	}
	return nil
}

func (s *Service) setPausing(app *App, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed[app.ID] = failed{err, time.Now()}
}

// explain returns an error for the user of Git.
func (s *Service) explain(app *App, err error) error {
	var coded *workspace.Error
	switch {
	case errors.As(err, &coded):
		return err
	case errors.Is(err, errRevoked):
		return message(workspace.CodeForbidden, "%s does not accept the connection any more. Connect %s again on your account page: %s/settings/account", app.Title, app.Title, s.base())
	case errors.Is(err, errClient):
		return message(workspace.CodeUnavailable, "%s does not accept the app of this server. Ask an administrator to check its client id and secret.", app.Title)
	}
	return &workspace.Error{Code: workspace.CodeUnavailable, Message: fmt.Sprintf("%s is not responding, so the token of the connection cannot be refreshed. Try again later.", app.Title), Err: err}
}

func message(code workspace.Code, format string, args ...any) error {
	return &workspace.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}
