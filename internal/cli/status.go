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
	"codehub/internal/cli/terminal"
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

func (s statusCmd) Run(ctx context.Context, k *kong.Context) error {
	c, err := s.connect()
	if err != nil {
		return err
	}
	var r statusReport
	if r.AdminStatus, err = c.AdminStatus(ctx); err == nil {
		r.Orphans, err = c.Orphans(ctx)
	}
	if err != nil {
		return err
	}
	return s.Print(k.Stdout, r, statusText(r, time.Now()))
}

func statusText(r statusReport, now time.Time) string {
	var b strings.Builder
	rows := [][]string{{"SERVER", "", "VERSION", "UP", "SEEN", "BACKENDS"}}
	for _, s := range r.Servers {
		marks := "alive"
		switch {
		case s.Leads:
			marks = "leads"
		case !s.Alive:
			marks = "gone"
		}
		rows = append(rows, []string{s.Hostname, marks, s.Version, age(now.Sub(s.StartedAt)), age(now.Sub(s.SeenAt)) + " ago", backendWords(s.Backends)})
	}
	if r.Hold != "" {
		fmt.Fprintf(&b, "codehub is on hold: %s. Run codehub reconcile-restore to review the takeover.\n\n", r.Hold)
	}
	b.WriteString(terminal.Table(rows))
	problems := [][]string{{"PROBLEM", "SERVER", "SINCE", "ERROR"}}
	for _, s := range r.Servers {
		for _, c := range s.Conditions {
			problems = append(problems, []string{c.Name, s.Hostname, age(now.Sub(c.Since)), c.Error})
		}
	}
	if len(problems) > 1 {
		fmt.Fprintf(&b, "\n%s", terminal.Table(problems))
	}
	fmt.Fprintf(&b, "\nWorkspaces: %s\n", countWords(r.Phases, phases))
	fmt.Fprintf(&b, "Operations: %s\n", countWords(r.Operations, operations))
	fmt.Fprintf(&b, "Running:    %d (limit: %s)\n", r.Running, limitWords(r.MaxRunning))
	if r.WatchedUntil != nil {
		fmt.Fprintf(&b, "Activity:   recorded through %s ago\n", age(now.Sub(*r.WatchedUntil)))
	}
	if len(r.LostArchives) > 0 {
		rows := [][]string{{"LOST ARCHIVE OF", "OWNER", "SINCE", "REASON", "KEY"}}
		for _, l := range r.LostArchives {
			rows = append(rows, []string{l.Name, l.Owner, age(now.Sub(l.Since)), l.Reason, l.ArchiveKey})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.LostVolumes) > 0 {
		rows := [][]string{{"LOST VOLUME OF", "OWNER", "SINCE", "REASON", "VOLUME"}}
		for _, l := range r.LostVolumes {
			rows = append(rows, []string{l.Name, l.Owner, age(now.Sub(l.Since)), l.Reason, l.Volume})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.FailedDeletions) > 0 {
		rows := [][]string{{"FAILED DELETION OF", "OWNER", "DELETED", "RETRY", "REASON", "ID"}}
		for _, f := range r.FailedDeletions {
			retry := "by owner"
			if f.Retrying {
				retry = "automatic"
			}
			rows = append(rows, []string{f.Name, f.Owner, age(now.Sub(f.DeletedAt)) + " ago", retry, cmp.Or(f.Message, f.Reason), f.WorkspaceID})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	if len(r.Orphans) > 0 {
		rows := [][]string{{"ORPHAN", "NAME", "SINCE", "REMOVED", "DETAIL"}}
		for _, o := range r.Orphans {
			removed := "never"
			if o.RemovedAfter != nil {
				removed = terminal.Time(*o.RemovedAfter)
			}
			rows = append(rows, []string{o.Kind, o.Name, age(now.Sub(o.FirstSeenAt)), removed, o.Detail})
		}
		fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
	}
	return b.String()
}

// backends and breakers are the words for the API's names.
var (
	backends = map[string]string{"engine": "Docker", "bucket": "archive storage"}
	breakers = map[string]string{api.BreakerOpen: "not responding", api.BreakerHalfOpen: "retrying"}
)

func backendWords(states map[string]api.Breaker) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(states)) {
		b := states[name]
		text := inWords(backends, name) + " ok"
		if b.State != api.BreakerClosed {
			text = inWords(backends, name) + " " + inWords(breakers, b.State) + ": " + b.Error
		}
		words = append(words, text)
	}
	return strings.Join(words, ", ")
}

// phases and operations are the words for the API's names.
var (
	phases     = map[string]string{"STANDBY": "stopped"}
	operations = map[string]string{"CREATE_EMPTY_ARCHIVE": "archiving an empty home"}
)

// countWords lists counts by their names: those of texts, otherwise in lower case.
func countWords(counts map[string]int, texts map[string]string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, strconv.Itoa(counts[name])+" "+cmp.Or(texts[name], strings.ToLower(name)))
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func limitWords(n int) string {
	if n == 0 {
		return "unlimited"
	}
	return strconv.Itoa(n)
}
