package move

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"codehub/api"
	"codehub/internal/workspace"
)

// Selection is what to move. Exactly one field is set.
type Selection struct {
	Workspace string // an id, or owner/name
	User      string // all workspaces of this user
	All       bool
}

// choose returns the selected users and workspaces, oldest workspaces first. Both lists are
// those of the source.
func (s Selection) choose(users []api.Account, all []api.MoveWorkspace) ([]api.Account, []api.MoveWorkspace, error) {
	all = slices.Clone(all)
	slices.Reverse(all) // the source lists the newest first
	switch {
	case s.All:
		return users, all, nil
	case s.User != "":
		u, err := userNamed(users, s.User)
		if err != nil {
			return nil, nil, err
		}
		return []api.Account{u}, slices.DeleteFunc(all, func(w api.MoveWorkspace) bool { return w.OwnerID != u.ID }), nil
	}
	i, err := s.find(users, all)
	if err != nil {
		return nil, nil, err
	}
	owner := slices.DeleteFunc(slices.Clone(users), func(u api.Account) bool { return u.ID != all[i].OwnerID })
	return owner, all[i : i+1], nil
}

// find returns the index of the selected workspace.
func (s Selection) find(users []api.Account, all []api.MoveWorkspace) (int, error) {
	is := func(w api.MoveWorkspace) bool { return w.ID == s.Workspace }
	if !workspace.ValidID(s.Workspace) {
		// A username has no slash, but the name of a workspace may have one.
		owner, name, ok := strings.Cut(s.Workspace, "/")
		if !ok {
			return 0, fmt.Errorf("%q is neither the id of a workspace nor owner/name", s.Workspace)
		}
		u, err := userNamed(users, owner)
		if err != nil {
			return 0, err
		}
		is = func(w api.MoveWorkspace) bool { return w.OwnerID == u.ID && w.Name == name }
	}
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return 0, fmt.Errorf("the source has no workspace %q", s.Workspace)
	}
	return i, nil
}

func userNamed(users []api.Account, name string) (api.Account, error) {
	i := slices.IndexFunc(users, func(u api.Account) bool { return sameUsername(u.Username, name) })
	if i < 0 {
		return api.Account{}, fmt.Errorf("the source has no user %q", name)
	}
	return users[i], nil
}

// sameUsername compares usernames as codehub does, without regard to case.
func sameUsername(a, b string) bool {
	folded := func(s string) string { return cases.Fold().String(norm.NFKC.String(s)) }
	return folded(a) == folded(b)
}
