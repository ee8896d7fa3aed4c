package admin

import (
	"context"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// MaxRunning bounds a limit of one user's own.
const MaxRunning = 1_000_000

// Accounts lists the users by name, as many as fit on a page; cursor is that
// of the page before, empty for the first.
func (s *Service) Accounts(ctx context.Context, caller workspace.Caller, cursor string) (api.AccountList, error) {
	list, err := s.cfg.Store.Accounts(ctx, caller, cursor)
	out := api.AccountList{Users: make([]api.Account, 0, len(list.Users)), NextCursor: list.NextCursor}
	for _, a := range list.Users {
		out.Users = append(out.Users, api.Account(a))
	}
	return out, err
}

// CreateAccount adds a user. CodeNameTaken; CodeInvalid for a name, a password
// or a limit that cannot be.
func (s *Service) CreateAccount(ctx context.Context, caller workspace.Caller, in api.CreateAccount) (api.Account, error) {
	if err := checkLimit(in.MaxRunning); err != nil {
		return api.Account{}, err
	}
	// Nobody else has this server hash passwords; the store asks once more.
	if _, err := s.cfg.Store.Account(ctx, caller, caller.UserID); err != nil {
		return api.Account{}, err
	}
	u, err := s.cfg.Passwords.NewUser(ctx, in.Username, in.Password)
	if err != nil {
		return api.Account{}, err
	}
	u.Admin, u.MaxRunning = in.Admin, in.MaxRunning
	made, err := s.cfg.Store.CreateAccount(ctx, caller, u)
	return api.Account(made), err
}

// PatchAccount changes a user; what is left out stays. A user who is disabled
// or gets another password loses all sessions and tokens at once. CodeNotFound;
// CodeLastAdmin if nobody would be left who may do this; CodeInvalid, also for
// the caller's own password, which takes the present one (auth.ChangePassword).
func (s *Service) PatchAccount(ctx context.Context, caller workspace.Caller, id string, in api.PatchAccount) (api.Account, error) {
	if err := checkLimit(in.MaxRunning.Value); err != nil {
		return api.Account{}, err
	}
	p := postgres.AccountPatch{Admin: in.Admin, Disabled: in.Disabled, MaxRunning: workspace.Optional[int](in.MaxRunning)}
	if in.Password != nil {
		if id == caller.UserID {
			return api.Account{}, workspace.Errorf(workspace.CodeInvalid, "Change your own password with your current one.")
		}
		account, err := s.cfg.Store.Account(ctx, caller, id)
		if err != nil {
			return api.Account{}, err
		}
		hash, err := s.cfg.Passwords.CheckedHash(ctx, account.Username, *in.Password)
		if err != nil {
			return api.Account{}, err
		}
		p.PasswordHash = &hash
	}
	changed, err := s.cfg.Store.PatchAccount(ctx, caller, id, p)
	return api.Account(changed), err
}

func checkLimit(n *int) error {
	if n != nil && (*n < 0 || *n > MaxRunning) {
		e := workspace.Errorf(workspace.CodeInvalid, "max_running must be between 0 (no limit) and %d.", MaxRunning)
		e.Details = map[string]any{"field": "max_running"}
		return e
	}
	return nil
}
