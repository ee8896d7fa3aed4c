package move

import (
	"context"
	"fmt"

	"codehub/api"
	"codehub/internal/auth"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// owner is a user of the source and the user here.
type owner struct {
	old    api.Account
	here   string // id; empty: the user is added with its first workspace
	result string
	reason string // if it is left
	// recorded: an earlier run or this one has recorded the user.
	recorded bool
	// planned counts the workspaces that a dry run would move.
	planned int
	names   map[string]bool
}

// username returns the owner's name; of a workspace whose owner the source did not list,
// the id.
func (o *owner) username(m api.MoveWorkspace) string {
	if o == nil {
		return m.OwnerID
	}
	return o.old.Username
}

func (o *owner) moved(source string) postgres.MovedUser {
	return postgres.MovedUser{
		Source: source, OldID: o.old.ID, ID: o.here, Username: o.old.Username, Disabled: o.old.Disabled, MaxRunning: o.old.MaxRunning,
	}
}

// planOwners decides for each user whether it is added, joined or left. It changes nothing.
func (r *run) planOwners(ctx context.Context, users []api.Account) error {
	done, err := r.DB.MovedUsers(ctx, r.source)
	if err != nil {
		return err
	}
	r.owners = map[string]*owner{}
	for _, u := range users {
		o := &owner{old: u, here: done[u.ID], recorded: done[u.ID] != "", names: map[string]bool{}}
		known, taken, err := r.usersHere(ctx, o)
		if err != nil {
			return err
		}
		r.owners[u.ID] = decideOwner(o, known, taken, r.JoinUsers)
	}
	return nil
}

// usersHere returns the user that an earlier run recorded, and the one that has the name; an
// empty id if there is none.
func (r *run) usersHere(ctx context.Context, o *owner) (known, taken postgres.User, err error) {
	if o.recorded {
		known, err = r.DB.User(ctx, o.here)
	} else {
		taken, err = r.DB.UserByName(ctx, o.old.Username)
	}
	if workspace.CodeOf(err) == workspace.CodeNotFound {
		err = nil
	}
	return known, taken, err
}

// decideOwner sets the result for a user. known is the user of an earlier run, and taken
// the one that has the name.
func decideOwner(o *owner, known, taken postgres.User, join bool) *owner {
	leave := func(reason string, args ...any) *owner {
		o.result, o.reason = Left, fmt.Sprintf(reason, args...)
		return o
	}
	switch {
	case o.recorded && known.ID == "":
		return leave("moved before and removed here since")
	case o.recorded:
		o.result = Already
	case !workspace.ValidID(o.old.ID):
		return leave("the id is not valid")
	case taken.ID != "" && !join:
		return leave("a user %s already exists here. If users of the same name are the same people, run with --join-users", taken.Username)
	case taken.ID != "":
		o.here, o.result = taken.ID, Joined
	case auth.CheckUsername(o.old.Username) != nil:
		return leave("the username is not valid here")
	default:
		o.result = Added
	}
	return o
}

// users records the selected users that no workspace has brought, and reports all of them.
// After an error, or for a single workspace, users without a moved workspace are omitted.
func (r *run) users(ctx context.Context, users []api.Account, stopped error) error {
	for _, old := range users {
		o := r.owners[old.ID]
		if !o.recorded && o.result != Left && !r.DryRun {
			if stopped != nil || r.Selection.Workspace != "" {
				continue
			}
			id, err := r.DB.MoveUser(ctx, o.moved(r.source))
			if err != nil {
				return fmt.Errorf("move user %s: %w", old.Username, err)
			}
			o.here, o.recorded = id, true
		}
		r.report.Users = append(r.report.Users, User{
			OldID: old.ID, Username: old.Username, ID: o.here, Result: o.result, Reason: o.reason, Notes: o.notes(),
		})
	}
	return nil
}

func (o *owner) notes() (notes []string) {
	switch o.result {
	case Added:
		notes = append(notes, "has no password here: set one with codehub users reset-password")
		if o.old.Admin {
			notes = append(notes, "is an administrator at the source, and not here")
		}
		if o.old.Disabled {
			notes = append(notes, "is disabled, as at the source")
		}
	case Joined:
		notes = append(notes, "keeps the password and the limits of this installation")
	}
	return notes
}
