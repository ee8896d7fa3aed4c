package arrivals

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// Person is a user of a source.
type Person struct {
	OldID, OldName string
	// User is the user to add, without an ID. Its name may differ from OldName.
	User postgres.User
	// Reason is why the user cannot be imported; empty: nothing.
	Reason string
	// Renamed: another name is found if a user of this source has it already.
	Renamed bool
	// Same: a user of that name here is the same person.
	Same  bool
	Notes []string // if the user is added
	// Complete is called before the user is added; optional.
	Complete func(context.Context, *postgres.ArrivedUser) error
	// Added returns more notes on a user that was added; optional.
	Added func(ctx context.Context, id string) ([]string, error)
}

// owner is a person and the user here.
type owner struct {
	Person
	arrived  postgres.ArrivedUser // its ID is empty until the user is added
	result   string
	reason   string // if the user is left
	notes    []string
	admin    bool
	recorded bool
	// What this run has planned for the user.
	workspaces int
	names      map[string]bool
}

// weakPassword is the first version's password of its user admin, which no administrator may have.
const weakPassword = "admin"

// check returns an error for an --owner who does not exist, and refuses an import after which the
// installation would have users and no administrator, so that the setup page would be closed.
func (r *Import) check(ctx context.Context, users []Person) error {
	if r.Owner != "" && len(users) > 0 {
		switch here, err := r.user(r.DB.UserByName(ctx, r.Owner)); {
		case err != nil:
			return err
		case here.ID == "":
			return fmt.Errorf("user %q, who should own the workspaces, does not exist", r.Owner)
		}
	}
	if slices.ContainsFunc(users, r.wantsAdmin) {
		return nil
	}
	if r.Admin != "" {
		return fmt.Errorf("the source has no user %q, who should become an administrator", r.Admin)
	}
	has, err := r.DB.HasAdmin(ctx)
	if err != nil || has || len(users) == 0 {
		return err
	}
	return errors.New("this installation has no administrator yet: start codehub once and set it up, or name a user of the source with --admin")
}

// wantsAdmin reports whether a user should become an administrator.
func (r *Import) wantsAdmin(p Person) bool {
	name, mapped := r.mapped(p)
	if !mapped {
		name = p.OldName
	}
	return r.Admin != "" && r.Admin == name
}

// mapped returns the name of the user here who the administrator chose for a person.
func (r *Import) mapped(p Person) (name string, ok bool) {
	if name, ok = r.Owners[p.OldName]; ok {
		return name, true
	}
	return r.Owner, r.Owner != ""
}

// decide decides for a person whether a user is added, joined or left. It changes nothing.
func (r *Import) decide(ctx context.Context, p Person) (*owner, error) {
	o := &owner{Person: p, names: map[string]bool{}}
	o.arrived = postgres.ArrivedUser{Source: r.source, OldID: p.OldID, User: p.User}
	if id := r.users[p.OldID]; id != "" {
		here, err := r.user(r.DB.User(ctx, id))
		switch {
		case err != nil:
			return nil, err
		case here.ID == "":
			return o.leave("imported before, and removed here since"), nil
		}
		o.result, o.recorded = Already, true
		return r.existing(o, here), nil
	}
	if p.Reason != "" {
		return o.leave(p.Reason), nil
	}
	name, mapped := r.mapped(p)
	if !mapped {
		name = p.User.Username
	}
	here, err := r.user(r.DB.UserByName(ctx, name))
	switch {
	case err != nil:
		return nil, err
	case here.ID != "" && (mapped || p.Same || r.JoinUsers && !r.brought(here.ID) && sameUsername(here.Username, strings.TrimSpace(p.OldName))):
		o.result = Joined
		o.notes = []string{"keeps the password, the identities and the limits of this installation"}
		return r.existing(o, here), nil
	case here.ID != "" && !(p.Renamed && r.brought(here.ID)):
		return o.leave(fmt.Sprintf("a user %s already exists here. If users of the same name are the same people, run with --join-users", here.Username)), nil
	case auth.CheckUsername(name) != nil:
		return o.leave(fmt.Sprintf("the username %.100q is not valid here; map it to another with --owner-map", p.OldName)), nil
	}
	if p.Renamed && !mapped {
		if name, err = r.freeUsername(ctx, name); err != nil {
			return nil, err
		}
	}
	o.arrived.Username = name
	if o.admin = r.wantsAdmin(p); o.admin && weak(p.User.PasswordHash) {
		return o.leave(weakReason), nil
	}
	o.arrived.Admin = o.admin
	o.result, o.notes = Added, p.Notes
	if name != p.OldName {
		o.notes = append(o.notes[:len(o.notes):len(o.notes)], "now logs in as "+name)
	}
	r.planned[postgres.UsernameKey(name)] = true
	return o, nil
}

// user returns no user in place of an error that says so.
func (*Import) user(u postgres.User, err error) (postgres.User, error) {
	if c := workspace.CodeOf(err); c == workspace.CodeNotFound || c == workspace.CodeInvalid {
		err = nil
	}
	return u, err
}

func (o *owner) leave(reason string) *owner {
	o.result, o.reason, o.notes, o.admin = Left, reason, nil, false
	return o
}

// existing sets the user here, and whether it becomes an administrator.
func (r *Import) existing(o *owner, here postgres.User) *owner {
	o.arrived.User, o.admin = here, here.Admin
	if here.Admin || !r.wantsAdmin(o.Person) {
		return o
	}
	if weak(here.PasswordHash) {
		return o.leave(weakReason)
	}
	o.admin = true
	return o
}

const weakReason = "the password is the first version's default, which an administrator must not have; change it first"

func weak(hash string) bool {
	matches, _ := auth.Matches(hash, weakPassword)
	return matches
}

// brought reports whether a user here came from the source.
func (r *Import) brought(id string) bool {
	for _, have := range r.users {
		if have == id {
			return true
		}
	}
	return false
}

// freeUsername adds a number to a name that is taken.
func (r *Import) freeUsername(ctx context.Context, name string) (string, error) {
	for n, free := 2, name; ; n++ {
		here, err := r.user(r.DB.UserByName(ctx, free))
		if err != nil || here.ID == "" && !r.planned[postgres.UsernameKey(free)] {
			return free, err
		}
		free = fmt.Sprintf("%.60s-%d", name, n)
	}
}

// chooseOwners decides for the selected users, and adds or joins them, unless one workspace is
// selected: its owner is recorded together with it.
func (r *Import) chooseOwners(ctx context.Context, users []Person) error {
	r.owners, r.planned = map[string]*owner{}, map[string]bool{}
	for _, p := range users {
		o, err := r.decide(ctx, p)
		if err != nil {
			return err
		}
		r.owners[p.OldID] = o
		if o.result != Left && !r.DryRun {
			if err := r.bring(ctx, o); err != nil {
				return fmt.Errorf("import user %s: %w", p.OldName, err)
			}
			if err := r.Pass("user"); err != nil {
				return err
			}
		}
	}
	return nil
}

// bring makes the user here, unless one workspace is selected.
func (r *Import) bring(ctx context.Context, o *owner) error {
	if !o.recorded && r.Selection.Workspace == "" {
		if err := o.complete(ctx); err != nil {
			return err
		}
		id, err := r.DB.AddArrivedUser(ctx, o.arrived)
		if err != nil {
			return err
		}
		r.isHere(o, id)
	}
	if o.result != Added && o.admin && !o.arrived.Admin {
		return r.DB.GrantAdmin(ctx, o.arrived.ID)
	}
	return nil
}

// complete asks the source for the rest of a user that is about to be added.
func (o *owner) complete(ctx context.Context) error {
	if o.result != Added || o.recorded || o.Complete == nil {
		return nil
	}
	return o.Complete(ctx, &o.arrived)
}

// isHere records that the user was added or joined.
func (r *Import) isHere(o *owner, id string) {
	o.arrived.ID, o.recorded = id, true
	r.users[o.OldID] = id
}

// reportUsers reports the selected users. After a run for one workspace, users without an
// imported workspace are omitted.
func (r *Import) reportUsers(ctx context.Context, users []Person) error {
	for _, p := range users {
		o := r.owners[p.OldID]
		if o == nil || !o.recorded && o.result != Left && !r.DryRun {
			continue
		}
		if o.result == Added && o.recorded && o.Added != nil {
			notes, err := o.Added(ctx, o.arrived.ID)
			if err != nil {
				return err
			}
			o.notes = append(o.notes[:len(o.notes):len(o.notes)], notes...)
		}
		u := User{OldID: p.OldID, OldName: p.OldName, Result: o.result, Reason: o.reason, Notes: o.notes, Admin: o.admin}
		if o.result != Left {
			u.ID, u.Username = o.arrived.ID, o.arrived.Username
		}
		r.report.Users = append(r.report.Users, u)
	}
	return nil
}
