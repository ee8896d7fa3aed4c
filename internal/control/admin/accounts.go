package admin

import (
	"context"
	"fmt"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// The highest limits of a user.
const (
	MaxRunning    = 1_000_000
	MaxWorkspaces = 1_000_000
	MaxBytes      = 1 << 50
)

// CreateAccount adds a user: with a password, or without one and with an invitation. Errors:
// CodeNameTaken; CodeInvalid for an invalid name, password or limit; CodeNotSupported for an
// invitation if users do not log in with passwords.
func (s *Service) CreateAccount(ctx context.Context, caller workspace.Caller, in api.CreateAccount) (api.Account, error) {
	if err := checkLimits(in.MaxRunning, in.MaxWorkspaces, in.MaxBytes); err != nil {
		return api.Account{}, err
	}
	// Check the caller before the expensive hash of the password; the store checks again.
	if _, err := s.cfg.Store.Account(ctx, caller, caller.UserID); err != nil {
		return api.Account{}, err
	}
	if in.Password == "" {
		return s.createInvited(ctx, caller, in)
	}
	u, err := s.cfg.Passwords.NewUser(ctx, caller, in.Username, in.Password)
	if err != nil {
		return api.Account{}, err
	}
	u.Admin, u.MaxRunning, u.MaxWorkspaces, u.MaxBytes = in.Admin, in.MaxRunning, in.MaxWorkspaces, in.MaxBytes
	return s.cfg.Store.CreateAccount(ctx, caller, u)
}

func (s *Service) createInvited(ctx context.Context, caller workspace.Caller, in api.CreateAccount) (api.Account, error) {
	name, err := s.cfg.Passwords.NewName(in.Username)
	if err != nil {
		return api.Account{}, err
	}
	made, err := s.invite(ctx, caller, []postgres.User{{
		Username: name, Admin: in.Admin, MaxRunning: in.MaxRunning, MaxWorkspaces: in.MaxWorkspaces, MaxBytes: in.MaxBytes,
	}})
	if err != nil {
		return api.Account{}, err
	}
	return made[0], nil
}

// PatchAccount changes the given fields of a user. Disabling a user or setting a
// password ends all sessions and tokens of the user. Errors: CodeNotFound;
// CodeLastAdmin if no administrator would remain; CodeInvalid, also for the caller's
// own password, which auth.ChangePassword changes.
func (s *Service) PatchAccount(ctx context.Context, caller workspace.Caller, id string, in api.PatchAccount) (api.Account, error) {
	if err := checkLimits(in.MaxRunning.Value, in.MaxWorkspaces.Value, in.MaxBytes.Value); err != nil {
		return api.Account{}, err
	}
	p := postgres.AccountPatch{
		Admin: in.Admin, Disabled: in.Disabled, Stop: in.StopWorkspaces,
		MaxRunning: workspace.Optional[int](in.MaxRunning), MaxWorkspaces: workspace.Optional[int](in.MaxWorkspaces), MaxBytes: workspace.Optional[int64](in.MaxBytes),
	}
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
	return s.cfg.Store.PatchAccount(ctx, caller, id, p)
}

func checkLimits(running, workspaces *int, bytes *int64) error {
	bad := func(field string, most int64) error {
		return workspace.InvalidField(field, fmt.Sprintf("must be between 0 (no limit) and %d.", most))
	}
	switch {
	case running != nil && (*running < 0 || *running > MaxRunning):
		return bad("max_running", MaxRunning)
	case workspaces != nil && (*workspaces < 0 || *workspaces > MaxWorkspaces):
		return bad("max_workspaces", MaxWorkspaces)
	case bytes != nil && (*bytes < 0 || *bytes > MaxBytes):
		return bad("max_bytes", MaxBytes)
	}
	return nil
}
