package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// reconcileRestoreCmd ends the hold after a database was restored, moved or copied.
type reconcileRestoreCmd struct {
	serverFlags
	terminal.Format

	DryRun       bool     `name:"dry-run" help:"Show the plan without applying it (default)." xor:"mode"`
	Apply        bool     `name:"apply" help:"Apply the plan and take over." xor:"mode"`
	Only         []string `name:"only" placeholder:"WORKSPACE" help:"Workspaces to change (default: all)."`
	KeepDatabase []string `name:"keep-database" placeholder:"WORKSPACE" help:"Workspaces that keep the database's state."`
}

func (r reconcileRestoreCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	choice := api.ApplyRestore{Only: r.Only, KeepDatabase: r.KeepDatabase}
	plan, err := c.RestorePlan(ctx, choice)
	if err != nil {
		return err
	}
	out := takeover{RestorePlan: plan}
	if r.Apply {
		result, err := c.ApplyRestore(ctx, choice)
		if err != nil {
			return err
		}
		out.OnHold, out.Applied = false, &result
	}
	return r.Print(k.Stdout, out, restoreText(out))
}

// takeover is a plan, and the result of its application.
type takeover struct {
	api.RestorePlan
	Applied *api.RestoreResult `json:"applied"` // nil: it was not applied
}

// restoreText formats the plan as a table.
func restoreText(p takeover) string {
	var b strings.Builder
	switch {
	case p.Applied != nil:
		fmt.Fprintf(&b, "This database leads now. Servers with another database are on hold.\nChanged workspaces: %d, unchanged: %d. The plan was:\n", p.Applied.Changed, p.Applied.Unchanged)
	case p.OnHold:
		fmt.Fprintf(&b, "codehub is on hold: %s.\n", p.Reason)
	default:
		fmt.Fprintln(&b, "codehub is not on hold.")
	}
	rows := [][]string{{"WORKSPACE", "OWNER", "ACTION", "REASON", "ID"}}
	for _, w := range p.Workspaces {
		owner := w.Owner
		if owner == "" {
			owner = "(you)"
		}
		rows = append(rows, []string{w.Name, owner, restoreWords(w), w.Reason, w.ID})
	}
	if len(rows) > 1 {
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	fmt.Fprintf(&b, "\nOther, unchanged workspaces: %d\n", p.Unchanged)
	if p.Applied == nil && p.OnHold {
		fmt.Fprintln(&b, "Nothing was changed. To apply this plan and take over, run: codehub reconcile-restore --apply")
		fmt.Fprintln(&b, "Taking over puts the previous server on hold.")
	}
	return b.String()
}

func restoreWords(w api.RestoreStep) string {
	var words []string
	switch w.Action {
	case api.RestoreVolume:
		words = append(words, "use the volume")
	case api.RestoreArchive:
		when := ""
		if w.ArchivedAt != nil {
			when = " of " + terminal.Time(*w.ArchivedAt)
		}
		words = append(words, "use the archive"+when)
	default:
		words = append(words, "keep")
	}
	for _, f := range []struct {
		on   bool
		word string
	}{{w.New, "add to the database"}, {w.Undelete, "undelete"}, {w.Running, "running"}, {w.SetAside, "set the volume aside"}, {w.Lost, "LOST"}} {
		if f.on {
			words = append(words, f.word)
		}
	}
	return strings.Join(words, ", ")
}
