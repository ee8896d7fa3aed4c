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
		if limited(now, w.phase) {
			if reason, err := atLimit(ctx, w.c, now.ID); err == nil {
				w.say(now, reason)
			}
			continue
		}
		if now.Operation == "NONE" {
			checks, _ = w.c.Checks(ctx) // without an answer there is no reason to print
		}
		if ctx.Err() != nil {
			return // what was said holds: the checks may have been cut off
		}
		w.say(now, waitReason(now, w.phase, checks))
	}
}

// say prints a reason unless it is the last one that was printed; empty: there is none now.
func (w *waiter) say(now api.Workspace, reason string) {
	w.mu.Lock()
	news := reason != w.said
	w.said = reason
	w.mu.Unlock()
	if news && reason != "" {
		w.m.note(terminal.Plain(now.Name) + " waits: " + reason)
	}
}

// limited reports whether a workspace's start is queued and only a limit of its owner delays it.
func limited(w api.Workspace, phase string) bool {
	return phase == "RUNNING" && w.Operation == "NONE" && w.Phase != "ERROR" && w.DesiredState != phase && w.NextDesiredState != nil && *w.NextDesiredState == phase
}

// atLimit names the caller's other workspaces that run or are about to stop, which the start of
// the workspace id waits for at the running limit.
func atLimit(ctx context.Context, c *client.Client, id string) (string, error) {
	list, err := c.List(ctx, client.Filter{})
	if err != nil {
		return "", err
	}
	var others []string
	for _, w := range list {
		if w.ID != id && (w.Phase == "RUNNING" || w.DesiredState == "RUNNING" || w.Operation == "STOPPING") {
			others = append(others, terminal.Plain(w.Name)+" is "+state(w))
		}
	}
	return strings.Join(append([]string{"its start is queued until a limit allows it"}, others...), "; "), nil
}

// stopping returns the names of the caller's workspaces that err, a refusal of the running limit,
// lists and that are about to stop; none for another error.
func stopping(ctx context.Context, c *client.Client, err error) []string {
	var e *client.Error
	if !errors.As(err, &e) || e.Code != "workspace_limit_exceeded" {
		return nil
	}
	running, _ := e.Details["running_workspaces"].([]any)
	var names []string
	for _, r := range running {
		m, _ := r.(map[string]any)
		id, _ := m["id"].(string)
		if w, err := c.Get(ctx, id); err == nil && w.State == "stopping" {
			names = append(names, terminal.Plain(w.Name))
		}
	}
	return names
}

// atTurn sends a request that starts a workspace. While the running limit refuses it and another
// workspace of the caller is stopping, the start is queued; then names those workspaces, for
// people, and is empty otherwise.
func atTurn(ctx context.Context, c *client.Client, send func(queueAtLimit bool) (api.Workspace, error)) (w api.Workspace, then string, err error) {
	w, err = send(false)
	names := stopping(ctx, c, err)
	if len(names) == 0 {
		return w, "", err
	}
	if w, err = send(true); err == nil && w.DesiredState != "RUNNING" {
		then = "; starts as soon as " + strings.Join(names, " or ") + " has stopped"
	}
	return w, then, err
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
