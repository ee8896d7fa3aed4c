package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// explainEvery is how long a workspace waits until the reason is looked for, and how often it is.
const explainEvery = 3 * time.Second

// waiter says why a workspace does not get to a phase, once for each reason.
type waiter struct {
	c     *client.Client
	phase string
	m     *meter

	mu   sync.Mutex
	last api.Workspace
	said string
}

// see records and shows the state of the workspace.
func (w *waiter) see(now api.Workspace) {
	w.mu.Lock()
	w.last = now
	w.mu.Unlock()
	w.m.watch(now)
}

// explain prints reasons until ctx ends.
func (w *waiter) explain(ctx context.Context, every time.Duration) {
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		w.mu.Lock()
		now := w.last
		w.mu.Unlock()
		if now.ID == "" {
			continue
		}
		var checks map[string]string
		if now.Operation == "NONE" {
			checks, _ = w.c.Checks(ctx) // without an answer there is no reason to print
		}
		if ctx.Err() != nil {
			return // what was said holds: the checks may have been cut off
		}
		reason := waitReason(now, w.phase, checks)
		w.mu.Lock()
		news := reason != w.said
		w.said = reason
		w.mu.Unlock()
		if news && reason != "" {
			w.m.note(terminal.Plain(now.Name) + " waits: " + reason)
		}
	}
}

// interrupted is the error of a wait that a signal ended. The server continues.
func (w *waiter) interrupted() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.ID == "" {
		return errWaitEnded
	}
	text := fmt.Sprintf("%s; %s is %s", errWaitEnded, terminal.Plain(w.last.Name), state(w.last))
	if w.said != "" {
		text += " and waits: " + w.said
	}
	return errors.New(text)
}

var errWaitEnded = errors.New("interrupted; the server continues without this command")

// notices are the conditions that keep a workspace from a phase, with the dashboard's names for
// them, most important first.
var notices = []struct {
	condition, shown string
	phases           []string // empty: any
}{
	{"docker", "backend", nil}, {"hold", "hold", nil}, {"wall", "wall", []string{"RUNNING"}}, {"disk", "disk", []string{"RUNNING", "STANDBY"}}, {"bucket", "bucket", nil},
}

// waitReason returns why the workspace does not get to the phase; empty if it does, or if that is
// not known.
func waitReason(w api.Workspace, phase string, checks map[string]string) string {
	if p := w.Progress; w.Operation != "NONE" {
		if p == nil || !strings.HasPrefix(p.Step, "waiting-") {
			return ""
		}
		text := words("step.", p.Step)
		if p.Detail != "" {
			text += ": " + terminal.Plain(p.Detail)
		}
		return text
	}
	for _, n := range notices {
		unneeded := n.condition == "bucket" && phase != "ARCHIVED" && w.Phase != "ARCHIVED"
		if checks[n.condition] == "failed" && !unneeded && (n.phases == nil || slices.Contains(n.phases, phase)) {
			return words("notice.", n.shown)
		}
	}
	return ""
}
