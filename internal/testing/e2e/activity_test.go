package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Four browser tabs with code-server and an idle timeout of a minute. Idle tabs
// stop their workspaces in time and do not wake them again. A tab with
// occasional typing and one whose terminal prints keep theirs running. So do commands in
// workspaces without a tab: codehub busy, codehub stay, and one that works, if its owner lets
// that count. Meanwhile the agent of a workspace costs what docs/agent.md promises:
// the IDE's traffic does not pass it.
func TestIdleTabsStopWorkspaces(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const (
		ttl = 60 * time.Second
		// A workspace whose activity is missed stops before this.
		watched = 160 * time.Second
		// The stop may be late by a flush, a tick, a TTL pass, and delays of the
		// machine.
		late = 4 * time.Minute
	)
	s := startModeQuick(t, pathMode, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "MAX_RUNNING_PER_USER=7", "CODEHUB_WORKING_THRESHOLD=2",
		fmt.Sprintf("TTL_STANDBY_SECONDS=%d", int(ttl.Seconds())), "CODEHUB_TTL_INTERVAL=2s", "CODEHUB_ACTIVITY_FLUSH_INTERVAL=1s")
	first := newBrowser(t, s.URL)
	first.login(s.URL, proc.AdminPassword)

	busy, stayed, working := s.busyWorkspace("busy"), s.busyWorkspace("stayed"), s.busyWorkspace("working")
	working.letWorkCount(first)

	home := s.ideTab(first, "idle-in-home", "/home/coder", "")
	folder := s.ideTab(first, "idle-in-a-folder", "/home/coder/project", "")
	printing := s.ideTab(first, "printing", "/home/coder/project", "")
	printing.bringToFront()
	printing.terminal()
	printing.printInTerminal()
	// Opened last, because typing begins when all tabs are open.
	typed := s.ideTab(first, "typed-in", "/home/coder/project", "notes.txt")
	start, atFirst := time.Now(), s.agentUse(typed.id)

	var all sync.WaitGroup
	errs := make(chan error, 8)
	var running atomic.Int32 // idle tabs
	for _, idle := range []*ideTab{home, folder} {
		running.Add(1)
		all.Go(func() {
			defer running.Add(-1)
			errs <- idle.expectIdleStop(ttl + late)
		})
	}
	all.Go(func() {
		for time.Since(start) < watched || running.Load() > 0 {
			if err := typed.pressKey(); err != nil {
				errs <- err
				return
			}
			if err := typed.expectRunningFor(time.Minute); err != nil {
				errs <- err
				return
			}
		}
	})
	all.Go(func() {
		var err error
		for err == nil && (time.Since(start) < watched || running.Load() > 0) {
			err = printing.expectRunningFor(time.Second)
		}
		if err != nil {
			printing.logTerminalOutput()
		}
		errs <- err
	})
	seconds := int(busyFor.Seconds())
	for _, use := range []struct {
		busyWorkspace
		kind, command, reason string
	}{
		{busy, "busy", fmt.Sprintf("codehub busy -m 'a long run' -- sleep %d", seconds), "a long run"},
		{stayed, "busy", fmt.Sprintf("timeout --foreground --preserve-status --signal=INT %d codehub stay", seconds), "codehub stay"},
		{working, "work", fmt.Sprintf("end=$((SECONDS + %d)); while [ $SECONDS -lt $end ]; do for i in {1..20000}; do :; done; sleep 0.2; done", seconds), ""},
	} {
		ended := use.begin(use.command)
		all.Go(func() { errs <- use.expectUse(use.kind, ended, late) })
		if use.reason != "" {
			use.shows(first, use.reason) // as long as the command runs
		}
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		return
	}
	s.checkAgentCost(typed.id, atFirst)
	for tab, kinds := range map[*ideTab][]string{typed: {"typing", "presence"}, printing: {"output"}} {
		w, err := tab.expectRunning()
		if err != nil {
			t.Error(err)
			continue
		}
		if w.LastAccessKind == nil || w.LastAccessAt == nil {
			t.Errorf("%s: no activity is recorded", tab.name)
			continue
		}
		if !strings.Contains(strings.Join(kinds, " "), *w.LastAccessKind) {
			t.Errorf("%s: last used by %s", tab.name, *w.LastAccessKind)
		}
		if ago := time.Since(*w.LastAccessAt); ago > ttl {
			t.Errorf("%s: last used %v ago", tab.name, ago)
		}
	}
}

// ideTab is a browser tab with the IDE of one workspace.
type ideTab struct {
	*browser
	server   *server
	id, name string
}

// ideTab creates a workspace and opens it in a new tab.
func (s *server) ideTab(b *browser, name, folder, file string) *ideTab {
	s.Helper()
	id := s.create(api.CreateWorkspace{Name: name})
	s.awaitPhase(id, "RUNNING")
	prepareIDE(b.T, id)
	out, err := exec.CommandContext(s.Context(), "docker", "exec", workspace.ID(id).DockerName(), "sh", "-c", `echo hello > /home/coder/project/notes.txt`).CombinedOutput()
	if err != nil {
		s.Fatalf("prepare the home: %v: %s", err, out)
	}
	tab := &ideTab{browser: b.tab(), server: s, id: id, name: name}
	address := s.URL + "/w/" + id + "/?folder=" + folder
	if file != "" {
		address += "&payload=" + url.QueryEscape(fmt.Sprintf(`[["openFile","vscode-remote://%s%s/%s"]]`, strings.TrimPrefix(s.URL, "http://"), folder, file))
	}
	tab.do("open "+name, navigate(address), until(`document.querySelector('.monaco-workbench .part.editor') !== null`))
	if file != "" {
		tab.do("see "+file, until(`document.querySelector('.editor-instance .view-line') !== null`))
	}
	return tab
}

// logTerminalOutput logs the times at which the command of printInTerminal
// printed, from the file that it also writes, and when the tab connected. They
// show whether the command did not print or the server did not see the output.
func (t *ideTab) logTerminalOutput() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "run", "--rm", "--network", "none", "--volume", "ws-"+t.id+"-home:/h:ro",
		"--entrypoint", "tail", env.workspaceImage, "-n", "30", "/h/going").CombinedOutput()
	t.Logf("%s: the command printed at (%v):\n%s", t.name, err, out)
	for line := range strings.Lines(t.server.Log()) {
		if strings.Contains(line, t.id) && strings.Contains(line, "status=101") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// printInTerminal makes the terminal print every 20 s. It types the command
// again until the output appears, because a new terminal or a busy machine may
// lose keys.
func (t *ideTab) printInTerminal() {
	t.Helper()
	printed := until(terminalShows("going-2"))
	for range 10 {
		t.do("start the printing command", chromedp.Click(".terminal-wrapper.active .xterm-screen"),
			text("while echo going-$((1 + 1)) $(date +%T) | tee -a ~/going; do sleep 20; done"), chromedp.KeyEvent("\r"))
		ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
		err := chromedp.Do(ctx, printed)
		cancel()
		if err == nil {
			return
		}
	}
	t.screenshot("no-output")
	t.Fatal("the terminal does not run the command")
}

// pressKey presses a key in the editor.
func (t *ideTab) pressKey() error {
	ctx, cancel := context.WithTimeout(t.ctx, time.Minute)
	defer cancel()
	bring := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.BringToFront, cdp.Empty{})
		return err
	})
	if err := chromedp.Do(ctx, bring, chromedp.MouseClickXY(700, 200), chromedp.KeyEvent("x")); err != nil {
		return fmt.Errorf("%s: press a key: %w", t.name, err)
	}
	return nil
}

// expectRunning returns the workspace, and an error if it is not RUNNING.
func (t *ideTab) expectRunning() (api.Workspace, error) {
	w, err := t.server.api.Get(t.Context(), t.id)
	if err == nil && (w.Phase != "RUNNING" || w.DesiredState != "RUNNING") {
		err = fmt.Errorf("%s: phase %s, desired %s because of %s; last used %v by %s",
			t.name, w.Phase, w.DesiredState, str(w.DesiredCause), w.LastAccessAt, str(w.LastAccessKind))
	}
	return w, err
}

// expectRunningFor returns an error if the workspace stops within d.
func (t *ideTab) expectRunningFor(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if _, err := t.expectRunning(); err != nil {
			return err
		}
	}
	return nil
}

// expectIdleStop waits until the idle timeout stops the workspace. It then
// checks for a minute that the tab, which tries to reconnect, does not wake it.
func (t *ideTab) expectIdleStop(within time.Duration) error {
	start := time.Now()
	for {
		w, err := t.server.api.Get(t.Context(), t.id)
		if err != nil {
			return err
		}
		if w.Phase == "STANDBY" && w.Operation == "NONE" {
			if str(w.StopReason) != "idle" {
				return fmt.Errorf("%s: stop reason %q, want idle", t.name, str(w.StopReason))
			}
			break
		}
		if time.Since(start) > within {
			return fmt.Errorf("%s is %s after %v; last used %v by %s", t.name, w.Phase, within, w.LastAccessAt, str(w.LastAccessKind))
		}
		time.Sleep(time.Second)
	}
	t.Logf("%s: in STANDBY after %v", t.name, time.Since(start).Round(time.Second))
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		w, err := t.server.api.Get(t.Context(), t.id)
		if err != nil {
			return err
		}
		if w.Phase != "STANDBY" || w.DesiredState != "STANDBY" || w.Operation != "NONE" {
			return fmt.Errorf("%s: its open tab woke it: %s, %s, desired %s", t.name, w.Phase, w.Operation, w.DesiredState)
		}
	}
	tries := 0
	for line := range strings.Lines(t.server.Log()) {
		if strings.Contains(line, "path=/w/"+t.id+"/") && strings.Contains(line, "status=503") {
			tries++
		}
	}
	t.Logf("%s: the tab tried to reconnect %d times", t.name, tries)
	if tries == 0 {
		return fmt.Errorf("%s: the tab did not try to reconnect", t.name)
	}
	return nil
}
