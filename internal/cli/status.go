package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
	"codehub/internal/web/dashboard/catalogue"
)

// statusCmd shows administrators the state of the servers.
type statusCmd struct {
	serverFlags
	terminal.Format
}

type statusReport struct {
	api.AdminStatus
	Orphans []api.Orphan `json:"orphans"`
}

func (s statusCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	var r statusReport
	var err error
	if r.AdminStatus, err = c.AdminStatus(ctx); err == nil {
		r.Orphans, err = c.Orphans(ctx)
	}
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, r, statusText(r, time.Now()))
}

// words is the function words for the server's runtime.
func (r statusReport) words(prefix, name string) string {
	if r.Runtime == "kubernetes" {
		return catalogue.English.On("Kubernetes").Known(prefix, name)
	}
	return catalogue.English.Known(prefix, name)
}

func statusText(r statusReport, now time.Time) string {
	var b strings.Builder
	rows := [][]string{{"SERVER", "STATE", "VERSION", "UP", "SEEN", "BACKENDS"}}
	for _, s := range r.Servers {
		state := "responding"
		switch {
		case s.Leads:
			state = words("admin.", "leader")
		case !s.Alive:
			state = words("admin.", "unresponsive")
		}
		rows = append(rows, []string{s.Hostname, state, s.Version, age(now.Sub(s.StartedAt)), age(now.Sub(s.SeenAt)) + " ago", r.backendWords(s.Backends)})
	}
	if r.Hold != "" {
		fmt.Fprintf(&b, "codehub is on hold: %s. Run codehub reconcile-restore to review the takeover.\n\n", r.Hold)
	}
	b.WriteString(terminal.Table(rows))
	problems := [][]string{{"PROBLEM", "SERVER", "SINCE", "ERROR"}}
	for _, s := range r.Servers {
		for _, c := range s.Conditions {
			problems = append(problems, []string{r.words("admin.condition.", c.Name), s.Hostname, age(now.Sub(c.Since)), c.Error})
		}
	}
	if len(problems) > 1 {
		fmt.Fprintf(&b, "\n%s", terminal.Table(problems))
	}
	fmt.Fprintf(&b, "\nWorkspaces: %s\n", countWords(r.Phases, "admin.phase."))
	fmt.Fprintf(&b, "Operations: %s\n", countWords(r.Operations, "admin.operation."))
	fmt.Fprintf(&b, "Running:    %d (limit: %s)\n", r.Running, limitWords(r.MaxRunning))
	if r.WatchedUntil != nil {
		fmt.Fprintf(&b, "Activity:   recorded through %s ago\n", age(now.Sub(*r.WatchedUntil)))
	}
	if r.ObservedAt != nil && r.TickedAt != nil {
		fmt.Fprintf(&b, "Observed:   %s ago, last tick %s ago\n", age(now.Sub(*r.ObservedAt)), age(now.Sub(*r.TickedAt)))
	}
	fmt.Fprintf(&b, "Backups:    %s\n", backupsWords(r.Backups, now))
	if r.Backups.DatabaseAt != nil {
		fmt.Fprintf(&b, "Database:   backed up %s ago\n", age(now.Sub(*r.Backups.DatabaseAt)))
	}
	if d := r.DatabaseDrill; d != nil {
		result := fmt.Sprintf("no problems, %d of %d workspaces unchanged", d.Comparison.Unchanged, d.Comparison.Workspaces)
		fmt.Fprintf(&b, "Drill:      database backup restored %s ago: %s\n", age(now.Sub(d.EndedAt)), cmp.Or(d.Problem, result))
	}
	if images := buildTable(r.Images, now); images != "" {
		fmt.Fprintf(&b, "\n%s", images)
	}
	if len(r.IdleStops) > 0 {
		rows := [][]string{{"IDLE WORKSPACE", "OWNER", "ENDED", "ACTION"}}
		for _, s := range r.IdleStops {
			action := "stopped"
			if s.Cause == "unused" {
				action = "archived"
			}
			rows = append(rows, []string{s.Name, s.Owner, age(now.Sub(s.At)) + " ago", action})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.LostNodes) > 0 {
		rows := [][]string{{"UNREACHABLE NODE", "SINCE", "WORKSPACES"}}
		for _, n := range r.LostNodes {
			var names []string
			for _, w := range n.Workspaces {
				names = append(names, w.Name+" ("+w.Owner+")")
			}
			rows = append(rows, []string{n.Name, age(now.Sub(n.Since)), strings.Join(names, ", ")})
		}
		fmt.Fprintf(&b, "\n%sIf a machine is off for good: codehub nodes dead NODE\n", terminal.Table(rows))
	}
	if len(r.LostArchives) > 0 {
		rows := [][]string{{"LOST ARCHIVE OF", "OWNER", "SINCE", "REASON", "KEY"}}
		for _, l := range r.LostArchives {
			rows = append(rows, []string{l.Name, l.Owner, age(now.Sub(l.Since)), words("reason.", l.Reason), l.ArchiveKey})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.LostVolumes) > 0 {
		rows := [][]string{{"LOST VOLUME OF", "OWNER", "SINCE", "REASON", "VOLUME"}}
		for _, l := range r.LostVolumes {
			rows = append(rows, []string{l.Name, l.Owner, age(now.Sub(l.Since)), volumeReason(l.Reason), l.Volume})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.FailedDeletions) > 0 {
		rows := [][]string{{"FAILED DELETION OF", "OWNER", "DELETED", "RETRY", "REASON", "ID"}}
		for _, f := range r.FailedDeletions {
			retry := words("admin.", "deletion_stopped")
			if f.Retrying {
				retry = words("admin.", "deletion_retried")
			}
			rows = append(rows, []string{f.Name, f.Owner, age(now.Sub(f.DeletedAt)) + " ago", retry, cmp.Or(f.Message, problem(f.Reason)), f.WorkspaceID})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.Orphans) > 0 {
		rows := [][]string{{"ORPHAN", "NAME", "SINCE", "REMOVED", "DETAIL"}}
		for _, o := range r.Orphans {
			removed := words("admin.", "removed_never")
			if o.RemovedAfter != nil {
				removed = terminal.Time(*o.RemovedAfter)
			}
			rows = append(rows, []string{words("admin.orphan.", o.Kind), o.Name, age(now.Sub(o.FirstSeenAt)), removed, o.Detail})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	return b.String()
}

func (r statusReport) backendWords(states map[string]api.Breaker) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(states)) {
		b := states[name]
		text := r.words("admin.backend.", name) + ": " + words("admin.breaker.", b.State)
		if b.Error != "" {
			text += " (" + b.Error + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// backupsWords is the state of the backups of homes in one line.
func backupsWords(s api.BackupStatus, now time.Time) string {
	text := strconv.Itoa(s.Compared)
	if s.Compared < s.Homes {
		text += " of " + strconv.Itoa(s.Homes)
	}
	text += " homes compared"
	if s.Homes == 0 {
		text = "none"
	}
	if s.ComparedAt != nil {
		differences := "differences"
		if s.Damaged == 1 {
			differences = "difference"
		}
		text += fmt.Sprintf(", %d %s, last %s ago", s.Damaged, differences, age(now.Sub(*s.ComparedAt)))
	}
	for _, n := range []struct {
		n    int
		what string
	}{{s.Running, "running"}, {s.Waiting, "queued"}, {s.Late, "late"}, {s.OverLimit, "at the limit of a user"}} {
		if n.n > 0 {
			text += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	if s.Bytes > 0 {
		text += ", " + terminal.Size(s.Bytes)
	}
	return text
}

// volumeReason returns why a volume is lost. "None", the word for a home without a volume, says
// too little where one should exist.
func volumeReason(reason string) string {
	if reason == "NoVolume" {
		return "missing"
	}
	return words("reason.", reason)
}

// countWords lists counts by the words for their names.
func countWords(counts map[string]int, prefix string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, strconv.Itoa(counts[name])+" "+lowered(prefix, name))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func limitWords(n int) string {
	if n == 0 {
		return "unlimited"
	}
	return strconv.Itoa(n)
}
