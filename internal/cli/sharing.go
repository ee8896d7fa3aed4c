package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// resolveEnterable finds a workspace that the user may open: one of their own, or one that is
// shared with them for use, by its id or OWNER/NAME. Of a shared one only ID, Name, State and URL
// are known.
func resolveEnterable(ctx context.Context, c *client.Client, ref string) (api.Workspace, error) {
	w, err := resolve(ctx, c, ref, false)
	if err == nil || terminal.ExitCode(err) != terminal.ExitNotFound && client.CodeOf(err) != "forbidden" {
		return w, err
	}
	list, unknown := c.Shared(ctx)
	if unknown != nil {
		return w, err
	}
	if s, found := findShared(list, ref); found && s.Access == "use" {
		return api.Workspace{ID: s.ID, Name: s.Name, State: s.State, URL: s.URL}, nil
	}
	return w, err
}

// findShared finds a workspace of another user by its id or OWNER/NAME.
func findShared(list []api.SharedWorkspace, ref string) (s api.SharedWorkspace, found bool) {
	owner, name, _ := strings.Cut(ref, "/")
	for _, s := range list {
		if strings.EqualFold(s.ID, ref) || strings.EqualFold(s.Owner, owner) && s.Name == name {
			return s, true
		}
	}
	return s, false
}

// isShared reports whether resolveEnterable found a workspace of another user.
func isShared(w api.Workspace) bool { return w.Phase == "" }

// shareTarget is with whom a workspace is shared.
type shareTarget struct {
	User  string `xor:"with" placeholder:"USER" help:"A user's name or id."`
	Group string `xor:"with" placeholder:"GROUP" help:"The name or id of a group that you are in."`
}

func (s shareTarget) check() error {
	if s.User == "" && s.Group == "" {
		return errors.New("give --user or --group")
	}
	return nil
}

type shareCmd struct {
	onWorkspace
	shareTarget
	View bool `xor:"how" help:"Let them see the state of the workspace, and not use it."`
	Git  bool `xor:"how" help:"Let Git in the workspace use your Git connections, also for these guests."`
}

// Help describes what is shared.
func (shareCmd) Help() string {
	return `Guests open and start the workspace, with the IDE, terminals, SSH and ports, and so can read and change everything in it. With --view they only see its name, state and last activity. Git in the workspace does not use your Git connections while it is shared for use with anyone without --git.`
}

func (s shareCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		access := "use"
		if s.View {
			access = "view"
		}
		made, err := c.Share(ctx, id, api.NewShare{User: s.User, Group: s.Group, Access: access, Git: s.Git})
		return made, fmt.Sprintf("Shared with %s: %s.", sharedWith(made), accessOf(made)), err
	})
}

// accessOf is what guests may do.
func accessOf(s api.Share) string {
	if s.Git {
		return s.Access + ", with Git connections"
	}
	return s.Access
}

func sharedWith(s api.Share) string {
	if s.Group != "" {
		return "group " + terminal.Plain(s.Group)
	}
	return terminal.Plain(s.User)
}

type unshareCmd struct {
	onWorkspace
	shareTarget
}

func (u unshareCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := u.check(); err != nil {
		return err
	}
	return u.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		list, err := c.Shares(ctx, id)
		if err != nil {
			return nil, "", err
		}
		if s, found := u.find(list); found {
			return s, fmt.Sprintf("No longer shared with %s.", sharedWith(s)), c.Unshare(ctx, id, s.ID)
		}
		return nil, "", terminal.NotFound("the workspace is not shared with %q", u.User+u.Group)
	})
}

// find finds the share with the user or the group.
func (s shareTarget) find(list []api.Share) (api.Share, bool) {
	if s.Group != "" {
		return byIDOrName(list, s.Group, func(s api.Share) (id, name string) { return s.GroupID, s.Group })
	}
	return byIDOrName(list, s.User, func(s api.Share) (id, name string) { return s.UserID, s.User })
}

type sharesCmd struct{ onWorkspace }

func (s sharesCmd) Run(ctx context.Context, k *kong.Context) error {
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		list, err := c.Shares(ctx, id)
		rows := [][]string{{"SHARED WITH", "ACCESS", "SINCE"}}
		for _, sh := range list {
			rows = append(rows, []string{sharedWith(sh), accessOf(sh), sh.CreatedAt.Local().Format("2006-01-02 15:04")})
		}
		return list, terminal.Table(rows), err
	})
}

type handOverCmd struct {
	onWorkspace
	Accept  bool `xor:"answer" help:"Give the workspace to the new owner, with all files."`
	Decline bool `xor:"answer" help:"Keep the workspace."`
}

// Help describes what is answered.
func (handOverCmd) Help() string {
	return `An administrator can ask you to give a workspace to another user. Without --accept or --decline the command shows who asks, and who would get it. A workspace must be stopped before you accept.`
}

func (h handOverCmd) Run(ctx context.Context, k *kong.Context) error {
	return h.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		r, err := c.HandOverRequest(ctx, id)
		if err != nil {
			return nil, "", err
		}
		text := fmt.Sprintf("%s asks you to hand over this workspace to %s. %s", r.By, r.To, r.Message)
		if h.Accept || h.Decline {
			err = c.AnswerHandOver(ctx, id, h.Accept)
			text = map[bool]string{true: "The workspace now belongs to " + r.To + ".", false: "You keep the workspace."}[h.Accept]
		}
		return r, terminal.Plain(strings.TrimSpace(text)), err
	})
}

type sharedCmd struct {
	serverFlags
	terminal.Format
}

func (s sharedCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Shared(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "ACCESS", "STATE", "ADDRESS", "ID"}}
	for _, w := range list {
		rows = append(rows, []string{w.Owner + "/" + w.Name, w.Access, w.State, w.URL, w.ID})
	}
	return s.Print(k.Stdout, list, terminal.Table(rows))
}

type leaveCmd struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" help:"OWNER/NAME or id of a workspace that is shared with you."`
}

// Help says what remains.
func (leaveCmd) Help() string {
	return `Ends your own share of the workspace, and your connections to it. Only its owner can share it again. Access as a member of a group stays.`
}

func (l leaveCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Shared(ctx)
	if err != nil {
		return err
	}
	w, found := findShared(list, l.Workspace)
	if !found {
		return terminal.NotFound("no workspace %q is shared with you", l.Workspace)
	}
	left, err := c.Leave(ctx, w.ID)
	if err != nil {
		return err
	}
	name := w.Owner + "/" + w.Name
	text := "Left " + name + "."
	if len(left.Groups) > 0 {
		text = "Your own share of " + name + " has ended. You still have access as a member of " + strings.Join(left.Groups, ", ") + "."
	}
	return l.Print(k.Stdout, left, terminal.Plain(text))
}
