package admin

import (
	"context"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// MaxRunning is the highest running limit of a user.
const MaxRunning = 1_000_000

// Accounts lists the users by name.
func (s *Service) Accounts(ctx context.Context, caller workspace.Caller, page postgres.Page) (api.AccountList, error) {
	list, err := s.cfg.Store.Accounts(ctx, caller, page)
	out := api.AccountList{Users: make([]api.Account, 0, len(list.Users)), NextCursor: list.NextCursor}
	for _, a := range list.Users {
		out.Users = append(out.Users, api.Account(a))
	}
	return out, err
}

// CreateAccount adds a user. Errors: CodeNameTaken; CodeInvalid for an invalid name,
// password or limit.
func (s *Service) CreateAccount(ctx context.Context, caller workspace.Caller, in api.CreateAccount) (api.Account, error) {
	if err := checkLimit(in.MaxRunning); err != nil {
		return api.Account{}, err
	}
	// Check the caller before the expensive hash of the password; the store checks again.
	if _, err := s.cfg.Store.Account(ctx, caller, caller.UserID); err != nil {
		return api.Account{}, err
	}
	u, err := s.cfg.Passwords.NewUser(ctx, caller, in.Username, in.Password)
	if err != nil {
		return api.Account{}, err
	}
	u.Admin, u.MaxRunning = in.Admin, in.MaxRunning
	made, err := s.cfg.Store.CreateAccount(ctx, caller, u)
	return api.Account(made), err
}

// PatchAccount changes the given fields of a user. Disabling a user or setting a
// password ends all sessions and tokens of the user. Errors: CodeNotFound;
// CodeLastAdmin if no administrator would remain; CodeInvalid, also for the caller's
// own password, which auth.ChangePassword changes.
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
		hash, err := s.cfg.Passwords.CheckedHash(ctx, caller, account.Username, *in.Password)
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
