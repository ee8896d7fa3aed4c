package importm1

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

// defaultPassword is the default password of the first version's user admin.
const defaultPassword = "admin"

// owner is the new user of a user of the first version; without one the id is
// empty.
type owner struct{ id, username string }

// noAdmin refuses an import after which the installation would have users and
// no administrator, so that the setup page would be closed.
func (r *run) noAdmin(ctx context.Context) error {
	if r.Admin != "" {
		if slices.ContainsFunc(r.Source.Users, func(u SourceUser) bool { return r.wantsAdmin(u.Username) }) {
			return nil
		}
		return fmt.Errorf("the first version has no user %q, who should become an administrator", r.Admin)
	}
	has, err := r.DB.HasAdmin(ctx)
	if err != nil || has || len(r.Source.Users) == 0 {
		return err
	}
	return errors.New("this installation has no administrator yet, and the first version had none: " +
		"start codehub once and set it up, or name a user of the first version with --admin")
}

// users imports the users and returns their new users by old id.
func (r *run) users(ctx context.Context) (map[string]owner, error) {
	done, err := r.DB.ImportedUsers(ctx)
	if err != nil {
		return nil, err
	}
	owners := map[string]owner{}
	made := map[string]bool{} // in a dry run
	for _, m := range r.Source.Users {
		u := User{OldID: m.ID, OldName: m.Username}
		who, err := r.user(ctx, m, done, made, &u)
		if err != nil {
			return nil, err
		}
		if u.Result != Left {
			owners[m.ID] = who
			u.ID, u.Username = who.id, who.username
		}
		r.report.Users = append(r.report.Users, u)
		if err := r.step("user"); err != nil {
			return nil, err
		}
	}
	return owners, nil
}

func (r *run) user(ctx context.Context, m SourceUser, done map[string]string, made map[string]bool, u *User) (owner, error) {
	leave := func(reason string, args ...any) (owner, error) {
		u.Result, u.Reason = Left, fmt.Sprintf(reason, args...)
		return owner{}, nil
	}
	if id, ok := done[m.ID]; ok {
		here, err := r.DB.User(ctx, id)
		if workspace.CodeOf(err) == workspace.CodeNotFound {
			return leave("imported before and removed since")
		}
		if err != nil {
			return owner{}, err
		}
		u.Result = Already
		return owner{here.ID, here.Username}, r.grant(ctx, m, here, u)
	}
	if len(m.ID) > maxOldID {
		return leave("the id is too long")
	}
	name := username(m.Username)
	if name == "" {
		return leave("no valid username can be made from this one")
	}
	if leave := r.password(m.PasswordHash, m.Username, u); leave != nil {
		return owner{}, nil
	}
	here, err := r.DB.UserByName(ctx, name)
	if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
		return owner{}, err
	}
	if err == nil && !r.imported(done, here.ID) {
		// An existing user with the same name may be another person.
		if !r.JoinUsers || !sameUsername(here.Username, strings.TrimSpace(m.Username)) {
			return leave("a user %s already exists. If users of the same name are the same people, run with --join-users", here.Username)
		}
		return r.join(ctx, m, here, u)
	}
	who := owner{id: newID(r.Bucket.Installation, "user", m.ID, m.CreatedAt), username: name}
	for n := 2; ; n++ {
		err := r.makeUser(ctx, m, who, made)
		if err == nil {
			break
		}
		if workspace.CodeOf(err) != workspace.CodeNameTaken || n > 100 {
			return owner{}, err
		}
		who.username = fmt.Sprintf("%s-%d", trimmed(name, 60), n)
	}
	if who.username != m.Username {
		u.Notes = append(u.Notes, fmt.Sprintf("now logs in as %s", who.username))
	}
	u.Result, u.Admin = Imported, r.wantsAdmin(m.Username)
	return who, nil
}

// wantsAdmin reports whether a user should become an administrator.
func (r *run) wantsAdmin(username string) bool { return r.Admin != "" && username == r.Admin }

// password adds notes on a user's password. An administrator with the default
// password is not imported.
func (r *run) password(hash, username string, u *User) error {
	matches, readable := auth.Matches(hash, defaultPassword)
	switch {
	case !readable:
		u.Notes = append(u.Notes, "the password hash cannot be verified; set a new password before this user can log in")
	case matches && r.wantsAdmin(username):
		u.Result, u.Reason = Left, "the password is the first version's default, which an administrator must not have; change it first"
		return errors.New(u.Reason)
	case matches:
		u.Notes = append(u.Notes, "the password is the first version's default; change it")
	}
	return nil
}

func (r *run) join(ctx context.Context, m SourceUser, here postgres.User, u *User) (owner, error) {
	if !r.DryRun {
		if err := r.DB.JoinUser(ctx, m.ID, here.ID); err != nil {
			return owner{}, err
		}
	}
	u.Result, u.Notes = Joined, []string{"keeps the password of this installation"}
	return owner{here.ID, here.Username}, r.grant(ctx, m, here, u)
}

// grant makes an existing user an administrator if requested.
func (r *run) grant(ctx context.Context, m SourceUser, here postgres.User, u *User) error {
	u.Admin = here.Admin
	if here.Admin || !r.wantsAdmin(m.Username) {
		return nil
	}
	if r.password(here.PasswordHash, m.Username, u) != nil {
		return nil
	}
	u.Admin = true
	if r.DryRun {
		return nil
	}
	return r.DB.GrantAdmin(ctx, here.ID)
}

// imported reports whether an existing user came from the first version. A user whose name
// differs from theirs only in case is then another one.
func (r *run) imported(done map[string]string, id string) bool {
	for _, u := range r.report.Users {
		if u.ID == id && (u.Result == Imported || u.Result == Joined) {
			return true
		}
	}
	for _, have := range done {
		if have == id {
			return true
		}
	}
	return false
}

func (r *run) makeUser(ctx context.Context, m SourceUser, who owner, made map[string]bool) error {
	if r.DryRun {
		taken := made[folded(who.username)]
		if !taken {
			_, err := r.DB.UserByName(ctx, who.username)
			if err != nil && workspace.CodeOf(err) != workspace.CodeNotFound {
				return err
			}
			taken = err == nil
		}
		if taken {
			return workspace.Errorf(workspace.CodeNameTaken, "taken")
		}
		made[folded(who.username)] = true
		return nil
	}
	return r.DB.ImportUser(ctx, m.ID, postgres.User{
		ID: who.id, Username: who.username, PasswordHash: m.PasswordHash, Admin: r.wantsAdmin(m.Username), CreatedAt: m.CreatedAt,
	})
}

func trimmed(s string, characters int) string {
	if r := []rune(s); len(r) > characters {
		return string(r[:characters])
	}
	return s
}
