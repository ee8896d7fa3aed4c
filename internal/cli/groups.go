package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type groupsCmd struct {
	List   groupsListCmd   `cmd:"" aliases:"ls" help:"List groups."`
	Show   groupsShowCmd   `cmd:"" help:"Show a group and its members."`
	Create groupsCreateCmd `cmd:"" help:"Create a group."`
	Set    groupsSetCmd    `cmd:"" help:"Change a group's name, claim and limits."`
	Delete groupsDeleteCmd `cmd:"" aliases:"rm" help:"Delete a group."`
	Add    groupsAddCmd    `cmd:"" help:"Add users to a group."`
	Remove groupsRemoveCmd `cmd:"" help:"Remove users from a group."`
}

// Help describes who may do what.
func (groupsCmd) Help() string {
	return `Users see the groups that they are in. Administrators of a group add and remove its members; administrators of codehub do everything.`
}

type groupsListCmd struct {
	serverFlags
	terminal.Format
}

func (g groupsListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Groups(ctx)
	if err != nil {
		return err
	}
	return g.Print(k.Stdout, list, groupTable(list))
}

func groupTable(list []api.Group) string {
	rows := [][]string{{"NAME", "MEMBERS", "RUNNING", "WORKSPACES", "SIZE", "CLAIM", "ID"}}
	for _, g := range list {
		rows = append(rows, []string{g.Name, strconv.Itoa(g.Members), groupLimit(g.MaxRunning), groupLimit(g.MaxWorkspaces), groupBytes(g.MaxBytes), claimOf(g), g.ID})
	}
	return terminal.Table(rows)
}

func groupLimit(n *int) string { return limitText(n, strconv.Itoa) }

func groupBytes(n *int64) string { return limitText(n, terminal.Size) }

// limitText writes a limit of a group.
func limitText[N int | int64](n *N, text func(N) string) string {
	switch {
	case n == nil:
		return "default"
	case *n == 0:
		return "none"
	}
	return text(*n)
}

func claimOf(g api.Group) string {
	if g.Issuer != "" {
		return g.Claim + " of " + g.Issuer
	}
	return g.Claim
}

// onGroup is embedded in the commands on one group.
type onGroup struct {
	serverFlags
	terminal.Format
	Group string `arg:"" help:"A group's name or id."`
}

// find connects and finds the group.
func (o onGroup) find(ctx context.Context) (*client.Client, api.Group, error) {
	c, err := o.connect()
	if err != nil {
		return nil, api.Group{}, err
	}
	g, err := findGroup(ctx, c, o.Group)
	return c, g, err
}

// findGroup finds a group by its id or its name.
func findGroup(ctx context.Context, c *client.Client, ref string) (api.Group, error) {
	list, err := c.Groups(ctx)
	if err != nil {
		return api.Group{}, err
	}
	if g, found := byIDOrName(list, ref, func(g api.Group) (id, name string) { return g.ID, g.Name }); found {
		return g, nil
	}
	return api.Group{}, terminal.NotFound("there is no group %q", ref)
}

type groupsShowCmd struct{ onGroup }

// groupWithMembers is what groups show prints as JSON.
type groupWithMembers struct {
	api.Group
	List []api.Member `json:"list,omitempty"` // absent for those who may not see it
}

func (g groupsShowCmd) Run(ctx context.Context, k *kong.Context) error {
	c, group, err := g.find(ctx)
	if err != nil {
		return err
	}
	out := groupWithMembers{Group: group}
	text := groupTable([]api.Group{group})
	if group.Manages {
		if out.List, err = c.Members(ctx, group.ID); err != nil {
			return err
		}
		rows := [][]string{{"MEMBER", "", "ID"}}
		for _, m := range out.List {
			rows = append(rows, []string{m.Username, memberMarks(m), m.UserID})
		}
		text += "\n" + terminal.Table(rows)
	}
	return g.Print(k.Stdout, out, text)
}

func memberMarks(m api.Member) string {
	var marks []string
	if m.Admin {
		marks = append(marks, "group admin")
	}
	if m.Claimed {
		marks = append(marks, "by claim")
	}
	return strings.Join(marks, ", ")
}

// groupLimits are the limits of a group as flags.
type groupLimits struct {
	MaxRunning    limit    `name:"max-running" placeholder:"N" help:"Running limit of each member; 0: unlimited, default: the server's limit."`
	MaxWorkspaces limit    `name:"max-workspaces" placeholder:"N" help:"Workspaces of each member; 0: unlimited, default: the server's limit."`
	MaxBytes      sizeFlag `name:"max-bytes" placeholder:"SIZE" help:"Size of homes and archives of each member, like 20g; 0: unlimited, default: the server's limit."`
}

type groupsCreateCmd struct {
	serverFlags
	terminal.Format
	groupLimits
	Name   string `arg:"" help:"The group's name."`
	Claim  string `placeholder:"GROUP" help:"A group of the identity provider whose members belong to it."`
	Issuer string `placeholder:"URL" help:"The identity provider of the claim (default: any)."`
}

func (g groupsCreateCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	made, err := c.CreateGroup(ctx, api.CreateGroup{Name: g.Name, Claim: g.Claim, Issuer: g.Issuer, MaxRunning: g.MaxRunning.n, MaxWorkspaces: g.MaxWorkspaces.n, MaxBytes: g.MaxBytes.n})
	if err != nil {
		return err
	}
	return g.Print(k.Stdout, made, "Created "+terminal.Plain(made.Name)+".")
}

type groupsSetCmd struct {
	onGroup
	groupLimits
	Name   *string `help:"A new name."`
	Claim  *string `placeholder:"GROUP" help:"A group of the identity provider whose members belong to it; empty: none."`
	Issuer *string `placeholder:"URL" help:"The identity provider of the claim; empty: any."`
}

func (g groupsSetCmd) Run(ctx context.Context, k *kong.Context) error {
	in := api.PatchGroup{
		Name: g.Name, Claim: g.Claim, Issuer: g.Issuer,
		MaxRunning:    api.Nullable[int]{Set: g.MaxRunning.given, Value: g.MaxRunning.n},
		MaxWorkspaces: api.Nullable[int]{Set: g.MaxWorkspaces.given, Value: g.MaxWorkspaces.n},
		MaxBytes:      api.Nullable[int64]{Set: g.MaxBytes.given, Value: g.MaxBytes.n},
	}
	if in == (api.PatchGroup{}) {
		return errNothingToSet
	}
	c, group, err := g.find(ctx)
	if err != nil {
		return err
	}
	changed, err := c.PatchGroup(ctx, group.ID, in)
	if err != nil {
		return err
	}
	return g.Print(k.Stdout, changed, "Changed "+terminal.Plain(changed.Name)+".")
}

type groupsDeleteCmd struct{ onGroup }

func (g groupsDeleteCmd) Run(ctx context.Context, k *kong.Context) error {
	c, group, err := g.find(ctx)
	if err != nil {
		return err
	}
	if err := c.DeleteGroup(ctx, group.ID); err != nil {
		return err
	}
	return g.Print(k.Stdout, group, "Deleted "+terminal.Plain(group.Name)+".")
}

type groupsAddCmd struct {
	onGroup
	Users   []string `arg:"" help:"Names or ids of users."`
	Admin   bool     `xor:"admin" help:"Make them administrators of the group (administrators)."`
	NoAdmin bool     `xor:"admin" name:"no-admin" help:"Make them plain members (administrators)."`
}

func (g groupsAddCmd) Run(ctx context.Context, k *kong.Context) error {
	c, group, err := g.find(ctx)
	if err != nil {
		return err
	}
	var admin *bool
	if g.Admin || g.NoAdmin {
		admin = &g.Admin
	}
	var added []api.Member
	var names []string
	for _, user := range g.Users {
		m, refused := c.SetMember(ctx, group.ID, api.SetMember{User: user, Admin: admin})
		if refused != nil {
			err = fmt.Errorf("%s: %w", terminal.Plain(user), refused)
			break
		}
		added, names = append(added, m), append(names, terminal.Plain(m.Username))
	}
	if len(added) == 0 {
		return err
	}
	return errors.Join(g.Print(k.Stdout, added, fmt.Sprintf("Added to %s: %s.", terminal.Plain(group.Name), strings.Join(names, ", "))), err)
}

type groupsRemoveCmd struct {
	onGroup
	Users []string `arg:"" help:"Names or ids of members."`
}

func (g groupsRemoveCmd) Run(ctx context.Context, k *kong.Context) error {
	c, group, err := g.find(ctx)
	if err != nil {
		return err
	}
	members, err := c.Members(ctx, group.ID)
	if err != nil {
		return err
	}
	var chosen []api.Member
	for _, user := range g.Users {
		m, found := byIDOrName(members, user, func(m api.Member) (id, name string) { return m.UserID, m.Username })
		if !found {
			return terminal.NotFound("%q is not a member", user)
		}
		chosen = append(chosen, m)
	}
	removed := []removedMember{}
	var names, stay []string
	for _, m := range chosen {
		left, refused := c.RemoveMember(ctx, group.ID, m.UserID)
		if refused != nil {
			err = fmt.Errorf("%s: %w", terminal.Plain(m.Username), refused)
			break
		}
		removed, names = append(removed, removedMember{UserID: m.UserID, Username: m.Username, RemovedMember: left}), append(names, terminal.Plain(m.Username))
		if left.Claimed {
			stay = append(stay, terminal.Plain(m.Username))
		}
	}
	if len(removed) == 0 {
		return err
	}
	text := fmt.Sprintf("Removed from %s: %s.", terminal.Plain(group.Name), strings.Join(names, ", "))
	if len(stay) > 0 {
		text += fmt.Sprintf(" Still a member by the identity provider's groups: %s.", strings.Join(stay, ", "))
	}
	return errors.Join(g.Print(k.Stdout, removed, text), err)
}

// removedMember is what groups remove prints as JSON.
type removedMember struct {
	UserID   string `json:"user_id"`
	Username string `json:"username"`
	api.RemovedMember
}
