package arrivals

import (
	"fmt"
	"slices"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Selection is what to import; without a field all is.
type Selection struct {
	Workspace string // an id, or owner/name
	User      string // all workspaces of this user
}

// choose returns the selected users and workspaces of a source.
func (s Selection) choose(users []Person, all []Found) ([]Person, []Found, error) {
	switch {
	case s.User != "":
		u, err := userNamed(users, s.User)
		if err != nil {
			return nil, nil, err
		}
		return []Person{u}, slices.DeleteFunc(slices.Clone(all), func(f Found) bool { return f.OwnerID != u.OldID }), nil
	case s.Workspace == "":
		return users, all, nil
	}
	i, err := s.find(users, all)
	if err != nil {
		return nil, nil, err
	}
	owner := slices.DeleteFunc(slices.Clone(users), func(u Person) bool { return u.OldID != all[i].OwnerID })
	return owner, all[i : i+1], nil
}

// find returns the index of the selected workspace.
func (s Selection) find(users []Person, all []Found) (int, error) {
	i := slices.IndexFunc(all, func(f Found) bool { return f.OldID == s.Workspace })
	if i >= 0 {
		return i, nil
	}
	// A username has no slash, but the name of a workspace may have one.
	owner, name, ok := strings.Cut(s.Workspace, "/")
	if !ok {
		if workspace.ValidID(s.Workspace) {
			return 0, fmt.Errorf("the source has no workspace %q", s.Workspace)
		}
		return 0, fmt.Errorf("%q is neither the id of a workspace nor owner/name", s.Workspace)
	}
	u, err := userNamed(users, owner)
	if err != nil {
		return 0, err
	}
	if i = slices.IndexFunc(all, func(f Found) bool { return f.OwnerID == u.OldID && f.OldName == name }); i < 0 {
		return 0, fmt.Errorf("the source has no workspace %q", s.Workspace)
	}
	return i, nil
}

func userNamed(users []Person, name string) (Person, error) {
	i := slices.IndexFunc(users, func(u Person) bool { return sameUsername(u.OldName, name) })
	if i < 0 {
		return Person{}, fmt.Errorf("the source has no user %q", name)
	}
	return users[i], nil
}

// sameUsername compares usernames as codehub does, without regard to case.
func sameUsername(a, b string) bool { return postgres.UsernameKey(a) == postgres.UsernameKey(b) }
