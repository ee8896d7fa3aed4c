package admin

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// maxClaim is the length of a group's claim and of an issuer, in bytes, as far as identity
// providers' groups are recorded.
const maxClaim = 255

// Groups lists groups by name; see postgres.DB.Groups.
func (s *Service) Groups(ctx context.Context, caller workspace.Caller, page postgres.Page) (api.GroupList, error) {
	list, next, err := s.cfg.Store.Groups(ctx, caller, page)
	return api.GroupList{Groups: list, NextCursor: next}, err
}

// CreateGroup adds a group. Errors: CodeNameTaken; CodeInvalid.
func (s *Service) CreateGroup(ctx context.Context, caller workspace.Caller, in api.CreateGroup) (api.Group, error) {
	g := postgres.Group{Name: in.Name, Claim: in.Claim, Issuer: in.Issuer, MaxRunning: in.MaxRunning, MaxWorkspaces: in.MaxWorkspaces, MaxBytes: in.MaxBytes}
	if err := checkLimits(in.MaxRunning, in.MaxWorkspaces, in.MaxBytes); err != nil {
		return api.Group{}, err
	}
	if err := checkGroup(&g.Name, &g.Claim, &g.Issuer); err != nil {
		return api.Group{}, err
	}
	return s.cfg.Store.CreateGroup(ctx, caller, g)
}

// PatchGroup changes the given fields of a group. Errors: CodeNotFound; CodeNameTaken;
// CodeInvalid.
func (s *Service) PatchGroup(ctx context.Context, caller workspace.Caller, id string, in api.PatchGroup) (api.Group, error) {
	if err := checkLimits(in.MaxRunning.Value, in.MaxWorkspaces.Value, in.MaxBytes.Value); err != nil {
		return api.Group{}, err
	}
	if err := checkGroup(in.Name, in.Claim, in.Issuer); err != nil {
		return api.Group{}, err
	}
	return s.cfg.Store.PatchGroup(ctx, caller, id, in)
}

// checkGroup checks the texts of a group that are not nil, and replaces each by the form in which
// it is stored.
func checkGroup(name, claim, issuer *string) error {
	for _, t := range []struct {
		field    string
		of       *string
		required bool
	}{{"name", name, true}, {"claim", claim, false}, {"issuer", issuer, false}} {
		if t.of == nil {
			continue
		}
		s := strings.TrimSpace(*t.of)
		if t.required {
			s = norm.NFC.String(s)
		}
		switch {
		case t.required && !workspace.Visible(s):
			return workspace.InvalidField(t.field, "must contain a visible character.")
		case t.required && utf8.RuneCountInString(s) > postgres.MaxGroupName:
			return workspace.InvalidField(t.field, fmt.Sprintf("is too long: at most %d characters.", postgres.MaxGroupName))
		case len(s) > maxClaim:
			return workspace.InvalidField(t.field, fmt.Sprintf("is too long: at most %d bytes.", maxClaim))
		case !utf8.ValidString(s), strings.ContainsFunc(s, workspace.Unprintable):
			return workspace.InvalidField(t.field, "must not contain control characters.")
		}
		*t.of = s
	}
	return nil
}

// Members lists the members of a group by name; see postgres.DB.Members.
func (s *Service) Members(ctx context.Context, caller workspace.Caller, id string, page postgres.Page) (api.MemberList, error) {
	list, next, err := s.cfg.Store.Members(ctx, caller, id, page)
	return api.MemberList{Members: list, NextCursor: next}, err
}

// SetMember adds a member, or changes one; see postgres.DB.SetMember.
func (s *Service) SetMember(ctx context.Context, caller workspace.Caller, id string, in api.SetMember) (api.Member, error) {
	if in.User == "" {
		return api.Member{}, workspace.InvalidField("user", "is required.")
	}
	return s.cfg.Store.SetMember(ctx, caller, id, in.User, in.Admin)
}

// RemoveMember removes a member; see postgres.DB.RemoveMember.
func (s *Service) RemoveMember(ctx context.Context, caller workspace.Caller, id, user string) (api.RemovedMember, error) {
	claimed, err := s.cfg.Store.RemoveMember(ctx, caller, id, user)
	return api.RemovedMember{Claimed: claimed}, err
}
