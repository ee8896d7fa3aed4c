package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
)

type usersCmd struct {
	List     usersListCmd     `cmd:"" aliases:"ls" help:"List users, their limits and what they use."`
	Create   usersCreateCmd   `cmd:"" help:"Create a user."`
	Invite   usersInviteCmd   `cmd:"" help:"Create a link that sets a user's password."`
	Import   usersImportCmd   `cmd:"" help:"Create the users of a list in CSV."`
	SetLimit usersLimitCmd    `cmd:"" name:"set-limit" help:"Set a user's running limit."`
	Admin    usersAdminCmd    `cmd:"" help:"Grant or revoke administrator access."`
	SetQuota usersQuotaCmd    `cmd:"" name:"set-quota" help:"Limit a user's workspaces and their size."`
	Disable  usersDisableCmd  `cmd:"" help:"Disable a user; sessions and tokens end."`
	Enable   usersEnableCmd   `cmd:"" help:"Enable a disabled user."`
	Delete   usersDeleteCmd   `cmd:"" aliases:"rm" help:"Delete a user."`
	Reset    usersPasswordCmd `cmd:"" name:"reset-password" help:"Set a user's password; sessions and tokens end."`
	Passkeys usersPasskeysCmd `cmd:"" name:"remove-passkeys" help:"Remove another user's passkeys and recovery codes."`
}

// Help describes the limits.
func (usersListCmd) Help() string {
	return `RUNNING, WORKSPACES, SIZE and BACKUPS show what a user uses, the limit in effect, and where it comes from: the user's own, a group, or the server.`
}

type usersListCmd struct {
	serverFlags
	terminal.Format
}

func (l usersListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Accounts(ctx)
	if err != nil {
		return err
	}
	return l.Print(k.Stdout, list, accountTable(list))
}

func accountTable(list []api.Account) string {
	rows := [][]string{{"NAME", "", "RUNNING", "WORKSPACES", "SIZE", "BACKUPS", "ID"}}
	for _, a := range list {
		number := func(n int64) string { return strconv.FormatInt(n, 10) }
		rows = append(rows, []string{
			a.Username, accountMarks(a), usedOf(int64(a.Running), a.Limits.Running, number),
			usedOf(int64(a.Workspaces), a.Limits.Workspaces, number), usedOf(a.Bytes, a.Limits.Bytes, terminal.Size),
			usedOf(a.BackupBytes, a.Limits.Backups, terminal.Size), a.ID,
		})
	}
	return terminal.Table(rows)
}

// usedOf is how much of a limit is used, such as "1 of 5 (group platform)".
func usedOf(used int64, l api.Limit, text func(int64) string) string {
	from := l.From
	if l.From == api.LimitGroup {
		from += " " + l.Group
	}
	if l.Max == 0 {
		return fmt.Sprintf("%s, no limit (%s)", text(used), from)
	}
	return fmt.Sprintf("%s of %s (%s)", text(used), text(l.Max), from)
}

func accountMarks(a api.Account) string {
	var marks []string
	if a.Admin {
		marks = append(marks, "admin")
	}
	if a.Disabled {
		marks = append(marks, "disabled")
	}
	if a.LockedTill != nil {
		marks = append(marks, "locked until "+a.LockedTill.Local().Format(time.TimeOnly))
	}
	if a.Suspended != nil {
		text := "suspended (" + suspendedFor(a) + ")"
		if a.SuspendedSince != nil {
			text += " since " + terminal.Time(*a.SuspendedSince)
		}
		marks = append(marks, text)
	}
	if a.InvitedUntil != nil {
		marks = append(marks, "invited until "+terminal.Time(*a.InvitedUntil))
	}
	switch {
	case a.Passkeys == 1:
		marks = append(marks, "1 passkey")
	case a.Passkeys > 1:
		marks = append(marks, strconv.Itoa(a.Passkeys)+" passkeys")
	}
	return strings.Join(marks, ", ")
}

// suspendedFor is why a suspended user is suspended.
func suspendedFor(a api.Account) string { return strings.ReplaceAll(*a.Suspended, "_", " ") }

// Help describes where the password comes from.
func (usersCreateCmd) Help() string {
	return `The password is asked for, or read from standard input. With --invite, the command prints a link instead, with which the user sets the password: it is valid once, for 3 days.`
}

type usersCreateCmd struct {
	serverFlags
	terminal.Format
	Name       string `arg:"" help:"The username."`
	Admin      bool   `help:"Make the user an administrator."`
	Invite     bool   `help:"Print a link with which the user sets the password."`
	MaxRunning limit  `name:"max-running" placeholder:"N" help:"Running limit; 0: unlimited, default: no own limit."`
}

func (u usersCreateCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	password := ""
	if !u.Invite {
		var err error
		if password, err = terminal.AskNewPassword(k.Stderr, bufio.NewReader(os.Stdin)); err != nil {
			return err
		}
	}
	made, err := c.CreateAccount(ctx, api.CreateAccount{Username: u.Name, Password: password, Admin: u.Admin, MaxRunning: u.MaxRunning.n})
	if err != nil {
		return err
	}
	text := "Added " + terminal.Plain(made.Username) + "."
	if u.Invite {
		text = invitationText(made)
	}
	return u.Print(k.Stdout, made, text)
}

// onUser is embedded in the commands on one user.
type onUser struct {
	serverFlags
	terminal.Format
	User string `arg:"" help:"A user's name or id."`
}

// change finds the user, applies a change and prints text about it.
func (o onUser) change(ctx context.Context, k *kong.Context, in api.PatchAccount, text string) error {
	a, err := o.patch(ctx, in)
	if err != nil {
		return err
	}
	return o.Print(k.Stdout, a, fmt.Sprintf(text, terminal.Plain(a.Username)))
}

// find returns a client and the id of the user.
func (o onUser) find(ctx context.Context) (*client.Client, string, error) {
	c, err := o.connect()
	if err != nil {
		return nil, "", err
	}
	id, err := findUser(ctx, c, o.User)
	return c, id, err
}

// patch finds the user and applies a change.
func (o onUser) patch(ctx context.Context, in api.PatchAccount) (api.Account, error) {
	c, id, err := o.find(ctx)
	if err != nil {
		return api.Account{}, err
	}
	return c.PatchAccount(ctx, id, in)
}

func findUser(ctx context.Context, c *client.Client, name string) (id string, err error) {
	list, err := c.Accounts(ctx)
	if err != nil {
		return "", err
	}
	if a, found := byIDOrName(list, name, func(a api.Account) (id, name string) { return a.ID, a.Username }); found {
		return a.ID, nil
	}
	return "", terminal.NotFound("there is no user %q", name)
}

// byIDOrName finds an entry by its id or, if there is none, by its name: a name can be the id of
// another entry.
func byIDOrName[T any](list []T, ref string, of func(T) (id, name string)) (T, bool) {
	for _, e := range list {
		if id, _ := of(e); id != "" && strings.EqualFold(id, ref) {
			return e, true
		}
	}
	for _, e := range list {
		if _, name := of(e); name != "" && strings.EqualFold(name, ref) {
			return e, true
		}
	}
	var none T
	return none, false
}

type usersLimitCmd struct {
	onUser
	Limit limit `arg:"" help:"A number; 0: unlimited, default: no own limit. Running workspaces keep running."`
}

func (u usersLimitCmd) Run(ctx context.Context, k *kong.Context) error {
	return u.change(ctx, k, api.PatchAccount{MaxRunning: api.Nullable[int]{Set: true, Value: u.Limit.n}}, "The running limit of %s is set.")
}

type usersAdminCmd struct {
	onUser
	Revoke bool `help:"Revoke administrator access."`
}

func (u usersAdminCmd) Run(ctx context.Context, k *kong.Context) error {
	admin, text := !u.Revoke, "%s is an administrator."
	if u.Revoke {
		text = "%s is no longer an administrator."
	}
	return u.change(ctx, k, api.PatchAccount{Admin: &admin}, text)
}

type usersDisableCmd struct {
	onUser
	Stop bool `help:"Also stop the user's workspaces."`
}

func (u usersDisableCmd) Run(ctx context.Context, k *kong.Context) error {
	disabled := true
	return u.change(ctx, k, api.PatchAccount{Disabled: &disabled, StopWorkspaces: u.Stop}, "%s is disabled.")
}

type usersEnableCmd struct{ onUser }

func (u usersEnableCmd) Run(ctx context.Context, k *kong.Context) error {
	disabled := false
	a, err := u.patch(ctx, api.PatchAccount{Disabled: &disabled})
	if err != nil {
		return err
	}
	text := "%s is enabled."
	if a.Suspended != nil {
		text = "%s is no longer disabled, and stays suspended (" + suspendedFor(a) + "). A login with the identity provider ends the suspension, or a new password: codehub users reset-password."
	}
	return u.Print(k.Stdout, a, fmt.Sprintf(text, terminal.Plain(a.Username)))
}

type usersPasswordCmd struct{ onUser }

func (u usersPasswordCmd) Run(ctx context.Context, k *kong.Context) error {
	password, err := terminal.AskNewPassword(k.Stderr, bufio.NewReader(os.Stdin))
	if err != nil {
		return err
	}
	return u.change(ctx, k, api.PatchAccount{Password: &password}, "The password of %s is set. All sessions and tokens have ended.")
}

// Help describes what the user's next login needs.
func (usersPasskeysCmd) Help() string {
	return `For a user who has lost them. The next login needs the password alone or, if the server requires a passkey, creates a new one. Sessions and tokens stay.`
}

type usersPasskeysCmd struct{ onUser }

func (u usersPasskeysCmd) Run(ctx context.Context, k *kong.Context) error {
	c, id, err := u.find(ctx)
	if err != nil {
		return err
	}
	a, err := c.RemovePasskeys(ctx, id)
	if err != nil {
		return err
	}
	return u.Print(k.Stdout, a, "The passkeys of "+terminal.Plain(a.Username)+" are removed.")
}

// limit is a limit of workspaces: a number, or none of its own.
type limit struct {
	given bool
	n     *int
}

// UnmarshalText reads "3", "0" or "default".
func (l *limit) UnmarshalText(b []byte) error {
	l.given = true
	if string(b) == "default" {
		l.n = nil
		return nil
	}
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return fmt.Errorf("%q is not a number of workspaces; use a number, 0 for unlimited, or default", b)
	}
	l.n = &n
	return nil
}

// sizeFlag is a limit of bytes: a size, or none of its own.
type sizeFlag struct {
	given bool
	n     *int64
}

// UnmarshalText reads "20g", "0" or "default".
func (f *sizeFlag) UnmarshalText(b []byte) error {
	f.given, f.n = true, nil
	if string(b) == "default" {
		return nil
	}
	n, err := setting.Bytes(string(b))
	if err != nil {
		return fmt.Errorf("%q is not a size; use one like 20g, 0 for unlimited, or default", b)
	}
	f.n = &n
	return nil
}
