package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"
	"golang.org/x/term"
	"golang.org/x/text/unicode/norm"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// resolve finds a workspace by its id or its name, among the deleted ones or among the
// others.
func resolve(ctx context.Context, c *client.Client, ref string, deleted bool) (api.Workspace, error) {
	if uuid.Validate(ref) == nil && len(ref) == 36 {
		w, err := c.Get(ctx, strings.ToLower(ref))
		if client.CodeOf(err) != "not_found" {
			return w, err
		}
	}
	name := norm.NFC.String(strings.TrimSpace(ref))
	list, err := c.List(ctx, client.Filter{Query: name, Deleted: deleted})
	if err != nil {
		return api.Workspace{}, err
	}
	var found []api.Workspace
	for _, w := range list {
		if w.Name == name {
			found = append(found, w)
		}
	}
	switch len(found) {
	case 0:
		return api.Workspace{}, terminal.NotFound("there is no %sworkspace %q", map[bool]string{true: "deleted "}[deleted], ref)
	case 1:
		return found[0], nil
	}
	ids := make([]string, len(found))
	for i, w := range found {
		ids[i] = w.ID
	}
	return api.Workspace{}, fmt.Errorf("several workspaces are called %q; give an id: %s", ref, strings.Join(ids, ", "))
}

// reach waits until the workspace now rests in a phase that is also its desired state, or
// until another state is desired. It shows progress on a terminal, and why the workspace waits.
func reach(ctx context.Context, k *kong.Context, c *client.Client, now api.Workspace, phase string) (api.Workspace, error) {
	id := now.ID
	shown := &waiter{c: c, phase: phase, m: newMeter(k.Stderr)}
	defer shown.m.clear()
	if limited(now, phase) {
		if reason, err := atLimit(ctx, c, id); err == nil {
			shown.say(now, reason)
		}
	}
	explaining, end := context.WithCancel(ctx)
	var explained sync.WaitGroup
	explained.Go(func() { shown.explain(explaining, explainEvery) })
	w, err := c.Wait(ctx, id, func(w api.Workspace) bool {
		shown.see(w)
		elsewhere := w.DesiredState != phase && w.NextDesiredState == nil
		return w.Operation == "NONE" && (w.Phase == phase && w.DesiredState == phase || elsewhere || w.DeletedAt != nil)
	})
	end()
	explained.Wait()
	switch {
	case err == nil && w.Phase != phase:
		err = &client.WaitError{Workspace: w}
	case err != nil && ctx.Err() != nil:
		err = shown.interrupted()
	}
	return w, err
}

type listCmd struct {
	serverFlags
	terminal.Format
	Query   string `short:"q" name:"query" help:"List only workspaces whose name or description contains this."`
	Phase   string `help:"List only workspaces in this phase: running, stopped, archived, pending or error."`
	Deleted bool   `help:"List deleted workspaces."`
	Names   bool   `help:"Print only names, one per line."`
}

func (l listCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.List(ctx, client.Filter{Query: l.Query, Phase: phaseOf(l.Phase), Deleted: l.Deleted})
	if err != nil {
		return err
	}
	if l.Names {
		for _, w := range list {
			fmt.Fprintln(k.Stdout, terminal.Plain(w.Name))
		}
		return nil
	}
	return l.Print(k.Stdout, list, workspaceTable(list, time.Now()))
}

// phaseOf returns the API's name for the word of a phase.
func phaseOf(word string) string {
	if phase := strings.ToUpper(word); phase != "STOPPED" {
		return phase
	}
	return "STANDBY"
}

type showCmd struct{ onThisWorkspace }

func (s showCmd) Run(ctx context.Context, k *kong.Context) error {
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Get(ctx, id)
		if err != nil {
			return w, "", err
		}
		skipped, err := int64(0), error(nil)
		var lacks []api.SecretMissing
		if !s.isInside() { // a workspace lists neither its archives nor secrets
			if skipped, err = notArchived(ctx, c, w); err == nil {
				lacks, err = missingSecrets(ctx, c, w)
			}
		}
		if err != nil {
			return w, "", err
		}
		out := shown{Workspace: w, Usage: usageNow(ctx, c, w)}
		text := workspaceDetails(w, out.Usage, skipped, time.Now())
		for _, m := range lacks {
			text += "\n" + missingWords(m)
		}
		return out, text, nil
	})
}

// shown is a workspace with its usage if it runs.
type shown struct {
	api.Workspace
	Usage *api.Usage `json:"usage,omitempty"`
}

// usageNow returns the usage of a running workspace; nil if its agent does not respond, so that
// the rest is shown.
func usageNow(ctx context.Context, c *client.Client, w api.Workspace) *api.Usage {
	if w.Phase != "RUNNING" {
		return nil
	}
	u, err := c.Usage(ctx, w.ID)
	if err != nil {
		return nil
	}
	return &u
}

// notArchived returns how many entries of the home the current archive does not have.
func notArchived(ctx context.Context, c *client.Client, w api.Workspace) (int64, error) {
	if w.ArchiveKey == nil {
		return 0, nil
	}
	list, err := c.Archives(ctx, w.ID)
	for _, a := range list {
		if a.Current {
			return a.Skipped, err
		}
	}
	return 0, err
}

// outcome formats a workspace after a request.
func outcome(w api.Workspace, err error) (any, string, error) {
	text := terminal.Plain(w.Name) + "   " + state(w)
	if w.NextDesiredState != nil {
		text += ", then " + inWords(desires, *w.NextDesiredState)
	}
	return w, text, err
}

// dropped names the state that was queued before a request and is not any more.
func dropped(before, now api.Workspace) string {
	queued := before.NextDesiredState
	if queued == nil || now.DesiredState == *queued || now.DeletedAt != nil || now.NextDesiredState != nil && *now.NextDesiredState == *queued {
		return ""
	}
	return "; no longer queued: " + inWords(desires, *queued)
}

type startCmd struct {
	onWorkspace
	Wait      bool `short:"w" help:"Wait until it runs."`
	FreeSpace bool `help:"Start over a limit of disk space, to free space."`
}

func (s startCmd) Run(ctx context.Context, k *kong.Context) error {
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		want := "RUNNING"
		in := api.UpdateWorkspace{DesiredState: &want, Queue: true, FreeSpace: s.FreeSpace, TimeZone: timeZone(os.Getenv("TZ"), os.DirFS("/"))}
		w, then, err := atTurn(ctx, c, func(queueAtLimit bool) (api.Workspace, error) {
			in.QueueAtLimit = queueAtLimit
			return c.Update(ctx, id, in)
		})
		if err == nil && s.Wait {
			w, err = reach(ctx, k, c, w, "RUNNING")
			then = ""
		}
		out, text, err := outcome(w, err)
		return out, text + then, err
	})
}

type stopCmd struct {
	onThisWorkspace
	Force bool `short:"f" help:"Remove the container at once, during any operation."`
	Wait  bool `short:"w" help:"Wait until it has stopped."`
}

// Help says what stays as it is.
func (stopCmd) Help() string {
	return `A workspace that does not run stays as it is: an archived one is not restored, and an archiving continues.`
}

func (s stopCmd) Run(ctx context.Context, k *kong.Context) error {
	return s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Stop(ctx, id, s.Force)
		switch {
		case err != nil || !s.Wait || s.isInside(): // it ends this command, too
		case w.DesiredState == "ARCHIVED" && w.NextDesiredState == nil: // it stays so
			w, err = c.Wait(ctx, id, func(w api.Workspace) bool { return w.Phase != "RUNNING" || w.DeletedAt != nil })
		default:
			w, err = reach(ctx, k, c, w, "STANDBY")
		}
		return outcome(w, err)
	})
}

type restartCmd struct {
	onWorkspace
	Wait bool `short:"w" help:"Wait until it runs again."`
}

func (r restartCmd) Run(ctx context.Context, k *kong.Context) error {
	return r.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Restart(ctx, id)
		if err == nil && r.Wait {
			w, err = reach(ctx, k, c, w, "RUNNING")
		}
		return outcome(w, err)
	})
}

type updateImageCmd struct {
	onWorkspace
	Restart bool `help:"Restart the workspace now, so that it takes effect."`
	Wait    bool `short:"w" help:"With --restart: wait until it runs again."`
}

func (u updateImageCmd) Run(ctx context.Context, k *kong.Context) error {
	return u.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Do(ctx, id, "update-image")
		if err == nil && u.Restart {
			w, err = c.Restart(ctx, id)
		}
		if err == nil && u.Restart && u.Wait {
			w, err = reach(ctx, k, c, w, "RUNNING")
		}
		if err == nil && w.ImageUpdateRequested && w.RunningImageRef != nil {
			return w, terminal.Plain(w.Name) + ": the update takes effect at the next start", nil
		}
		return outcome(w, err)
	})
}

type deleteCmd struct {
	onWorkspace
	Yes bool `short:"y" help:"Skip the confirmation."`
}

func (d deleteCmd) Run(ctx context.Context, k *kong.Context) error {
	if !d.Yes {
		if !terminal.Interactive() {
			return fmt.Errorf("nothing was deleted: no terminal to ask in; give --yes")
		}
		text, err := terminal.Ask(k.Stderr, bufio.NewReader(os.Stdin), fmt.Sprintf("Delete the workspace %q? [y/N] ", d.Workspace))
		if err != nil || !strings.EqualFold(strings.TrimSpace(text), "y") {
			return fmt.Errorf("nothing was deleted")
		}
	}
	if err := d.failedBefore(ctx); err != nil {
		return err
	}
	return d.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Delete(ctx, id, true)
		if err != nil {
			return nil, "", err
		}
		said := w
		if w.State == "delete_failed" && w.PendingRequest != nil {
			said.State = "deleting" // the error is from before
		}
		_, text, _ := outcome(said, nil)
		switch {
		case w.DeletedAt == nil: // it is queued
		case w.PurgedAt != nil && w.PurgedAt.After(time.Now()):
			text += fmt.Sprintf("; until %s: codehub undelete %s", terminal.Time(*w.PurgedAt), w.ID)
		default:
			text += "; this cannot be undone"
		}
		return w, text, nil
	})
}

// failedBefore replaces the name of a workspace by its id if only a workspace whose
// deletion failed has that name, so that the deletion is repeated.
func (d *deleteCmd) failedBefore(ctx context.Context) error {
	c, err := d.connect()
	if err != nil {
		return err
	}
	if _, err := resolve(ctx, c, d.Workspace, false); terminal.ExitCode(err) != terminal.ExitNotFound {
		return err
	}
	w, err := resolve(ctx, c, d.Workspace, true)
	if err == nil && w.State == "delete_failed" {
		d.Workspace = w.ID
	}
	return nil
}

// doCmd requests the change of its name, which needs nothing but the workspace.
type doCmd struct{ onWorkspace }

func (d doCmd) Run(ctx context.Context, k *kong.Context) error {
	change := k.Selected().Name
	return d.run(ctx, k, change == "undelete", func(c *client.Client, id string) (any, string, error) { return outcome(c.Do(ctx, id, change)) })
}

type recoverCmd struct {
	onWorkspace
	StartEmpty bool   `xor:"instead" help:"Give up lost data; start with an empty home."`
	Archive    string `xor:"instead" placeholder:"ARCHIVE" help:"Replace lost data with this archive."`
	SetAside   bool   `xor:"instead" help:"Set aside the volume that blocks the home."`
	Confirm    string `placeholder:"NAME" help:"With --start-empty and --archive: the workspace's name."`
}

func (r recoverCmd) Run(ctx context.Context, k *kong.Context) error {
	in := api.Recover{Confirm: r.Confirm}
	switch {
	case r.StartEmpty:
		in.Action = api.RecoverEmpty
	case r.SetAside:
		in.Action = api.RecoverSetAside
	case r.Archive != "":
		in.Action, in.ArchiveOpID = api.RecoverArchive, r.Archive
	}
	return r.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		return outcome(c.Recover(ctx, id, in))
	})
}

type openCmd struct {
	onWorkspace
	Print bool `short:"p" help:"Only print the address."`
}

func (o openCmd) Run(ctx context.Context, k *kong.Context) error {
	return o.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Get(ctx, id)
		if err == nil && !o.Print && term.IsTerminal(int(os.Stdout.Fd())) {
			if err := browse(ctx, w.URL); err != nil {
				fmt.Fprintln(k.Stderr, "No browser could be opened; the address is:")
			}
		}
		return map[string]string{"url": w.URL}, w.URL, err
	})
}

// browse opens an address in the user's browser.
func browse(ctx context.Context, url string) error {
	// The address is from the server, and must not become an option or another program.
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return fmt.Errorf("%q is not the address of a page", url)
	}
	return opener(ctx, url).Run()
}

type logsCmd struct {
	serverFlags
	Workspace string `arg:"" help:"A workspace's name or id."`
	Follow    bool   `short:"f" help:"Follow new output."`
	Tail      int    `short:"n" default:"1000" help:"Newest lines to print; 0 prints all."`
}

func (l logsCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	w, err := resolve(ctx, c, l.Workspace, false)
	if err != nil {
		return err
	}
	return copyBody(ctx, terminal.Foreign(k.Stdout), l.Follow)(c.Logs(ctx, w.ID, l.Tail, l.Follow))
}
