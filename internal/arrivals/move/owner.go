package move

import (
	"context"
	"fmt"
	"strings"

	"codehub/api"
	"codehub/client"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
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
	// identities are those of the source, once it was asked; earlier: its version does not have
	// the call.
	identities     []postgres.MovedIdentity
	asked, earlier bool
	linked         []postgres.Identity // of identities, those that the user here has
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
		Identities: o.identities,
	}
}

// maxIdentities bounds those of a user: one for each provider, and a few more.
const maxIdentities = 50

// identities asks the source for the identities of a user that is about to be added.
func (r *run) identities(ctx context.Context, o *owner) error {
	if o.result != Added || o.recorded || o.asked {
		return nil
	}
	u, err := read(ctx, r, func(ctx context.Context) (api.MoveUser, error) { return r.Source.MoveUser(ctx, o.old.ID) })
	if o.earlier = client.CodeOf(err) == "not_found"; err != nil && !o.earlier {
		return fromSource(fmt.Errorf("read the identities of %s: %w", o.old.Username, err))
	}
	o.asked = true
	for _, i := range u.Identities[:min(len(u.Identities), maxIdentities)] {
		if i.Issuer != "" && i.Subject != "" && len(i.Issuer) <= 2048 && len(i.Subject) <= 255 && !strings.ContainsRune(i.Issuer+i.Subject, 0) {
			o.identities = append(o.identities, postgres.MovedIdentity{Issuer: i.Issuer, Subject: i.Subject, Username: i.Username})
		}
	}
	return nil
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
			if err := r.identities(ctx, o); err != nil {
				return err
			}
			id, err := r.DB.MoveUser(ctx, o.moved(r.source))
			if err != nil {
				return fmt.Errorf("move user %s: %w", old.Username, err)
			}
			o.here, o.recorded = id, true
		}
		if o.result == Added && o.recorded {
			var err error
			if o.linked, err = r.DB.Identities(ctx, workspace.Caller{UserID: o.here}); err != nil {
				return err
			}
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
		notes = append(notes, o.logins()...)
		if o.old.Admin {
			notes = append(notes, "is an administrator at the source, and not here")
		}
		if o.old.Disabled {
			notes = append(notes, "is disabled, as at the source")
		}
	case Joined:
		notes = append(notes, "keeps the password, the identities and the limits of this installation")
	}
	return notes
}

// logins says how a user that was added logs in.
func (o *owner) logins() (notes []string) {
	has := map[postgres.MovedIdentity]bool{}
	for _, i := range o.linked {
		has[postgres.MovedIdentity{Issuer: i.Issuer, Subject: i.Subject}] = true
		notes = append(notes, "logs in with "+i.Issuer+" as at the source, if CODEHUB_OIDC_FILE has it")
	}
	for _, i := range o.identities {
		if !has[postgres.MovedIdentity{Issuer: i.Issuer, Subject: i.Subject}] {
			notes = append(notes, "the account at "+i.Issuer+" belongs to another user here, and was not linked")
		}
	}
	if o.earlier {
		notes = append(notes, "the source is of a version that does not tell how users log in with identity providers")
	}
	if len(o.linked) == 0 {
		notes = append(notes, "has no password here: send an invitation (codehub users invite), or set one with codehub users reset-password")
	}
	return notes
}
