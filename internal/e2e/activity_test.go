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
	"codehub/internal/e2e/proc"
)

// Four tabs of real code-server, and an idle timeout of a minute: those that
// nobody uses stop their workspaces no later than they should, and never start
// them again; the one in which somebody types now and then, and the one whose
// terminal prints with nobody there, run on.
func TestIdleTabsStopWorkspaces(t *testing.T) {
	t.Parallel()
	const (
		ttl = 60 * time.Second
		// A window takes its visitor for present for a minute after the last key:
		// one whose use is not noticed stops two minutes after it.
		watched = 160 * time.Second
		// Late by a window's minute of taking its visitor for present, a flush,
		// a tick of the clock and one of the TTLs; and what the machine takes.
		late = 4 * time.Minute
	)
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "MAX_RUNNING_PER_USER=4",
		fmt.Sprintf("TTL_STANDBY_SECONDS=%d", int(ttl.Seconds())), "CODEHUB_TTL_INTERVAL=2s", "CODEHUB_ACTIVITY_FLUSH_INTERVAL=1s")
	first := newBrowser(t)
	first.login(s.URL, proc.AdminPassword)

	home := s.ideTab(first, "idle-in-home", "/home/coder", "")
	folder := s.ideTab(first, "idle-in-a-folder", "/home/coder/project", "")
	printing := s.ideTab(first, "printing", "/home/coder/project", "")
	printing.front()
	printing.terminal()
	printing.leaveRunning()
	// The last one: nobody types in it before all of them are open.
	typed := s.ideTab(first, "typed-in", "/home/coder/project", "notes.txt")
	start := time.Now()

	var all sync.WaitGroup
	problems := make(chan error, 5)
	var running atomic.Int32 // idle tabs
	for _, idle := range []*ideTab{home, folder} {
		running.Add(1)
		all.Go(func() {
			defer running.Add(-1)
			problems <- idle.stopsByItself(ttl + late)
		})
	}
	all.Go(func() {
		for time.Since(start) < watched || running.Load() > 0 {
			if err := typed.key(); err != nil {
				problems <- err
				return
			}
			if err := typed.runsFor(time.Minute); err != nil {
				problems <- err
				return
			}
		}
	})
	all.Go(func() {
		var err error
		for err == nil && (time.Since(start) < watched || running.Load() > 0) {
			err = printing.runsFor(time.Second)
		}
		if err != nil {
			printing.tellWhatWasPrinted()
		}
		problems <- err
	})
	all.Wait()
	close(problems)
	for err := range problems {
		if err != nil {
			t.Error(err)
		}
	}
	if t.Failed() {
		return
	}
	for tab, kinds := range map[*ideTab][]string{typed: {"typing", "presence"}, printing: {"output"}} {
		w, err := tab.runs()
		if err != nil {
			t.Error(err)
			continue
		}
		if w.LastAccessKind == nil || w.LastAccessAt == nil {
			t.Errorf("%s: nothing is known of its use", tab.name)
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

// ideTab is a tab with the IDE of a workspace of its own.
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
	out, err := exec.CommandContext(s.Context(), "docker", "exec", "codehub-ws-"+id, "sh", "-c",
		`sed -i 's/^{/{ "terminal.integrated.gpuAcceleration": "off", "terminal.integrated.shellIntegration.enabled": false, "window.confirmBeforeClose": "never",/' `+
			`/home/coder/.local/share/code-server/User/settings.json && echo hello > /home/coder/project/notes.txt`).CombinedOutput()
	if err != nil {
		s.Fatalf("prepare the home: %v: %s", err, out)
	}
	ctx, cancel := chromedp.NewContext(b.ctx)
	s.Cleanup(cancel)
	tab := &ideTab{browser: &browser{T: b.T, ctx: ctx, dir: b.dir}, server: s, id: id, name: name}
	if err := chromedp.Do(ctx, tab.leaveByAll()); err != nil { // the first call makes the tab
		s.Fatal(err)
	}
	address := s.URL + "/w/" + id + "/?folder=" + folder
	if file != "" {
		address += "&payload=" + url.QueryEscape(fmt.Sprintf(`[["openFile","vscode-remote://%s%s/%s"]]`, strings.TrimPrefix(s.URL, "http://"), folder, file))
	}
	tab.do("open "+name, chromedp.Navigate(address), until(`document.querySelector('.monaco-workbench .part.editor') !== null`))
	if file != "" {
		tab.do("see "+file, until(`document.querySelector('.editor-instance .view-line') !== null`))
	}
	return tab
}

// front shows the tab: a browser gives its keys to that one.
func (t *ideTab) front() {
	t.Helper()
	t.do("bring it to the front", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.BringToFront, cdp.Empty{})
		return err
	}))
}

// tellWhatWasPrinted logs when the command of leaveRunning ran, which it also
// wrote to the home, and when the tab connected: they tell whether nothing was
// printed or nobody heard it.
func (t *ideTab) tellWhatWasPrinted() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", "run", "--rm", "--network", "none", "--volume", "ws-"+t.id+"-home:/h:ro",
		"--entrypoint", "tail", env.workspaceImage, "-n", "30", "/h/going").CombinedOutput()
	t.Logf("%s: the command printed at (%v):\n%s", t.name, err, out)
	for line := range strings.Lines(t.server.Log()) {
		if strings.Contains(line, t.id) && (strings.Contains(line, "status=101") || strings.Contains(line, "decode VS Code messages failed")) {
			t.Log(strings.TrimSpace(line))
		}
	}
}

// leaveRunning has the terminal print every 20 s. A new terminal may lose what
// is typed at once, and a busy machine any key: the loop itself prints what is
// waited for, so that one which was mistyped is typed again.
func (t *ideTab) leaveRunning() {
	t.Helper()
	shows := until(`(document.querySelector('.terminal-wrapper.active .xterm-rows')?.innerText ?? '').includes('going-2')`)
	for range 10 {
		t.do("leave something running", chromedp.Click(".terminal-wrapper.active .xterm-screen"),
			text("while echo going-$((1 + 1)) $(date +%T) | tee -a ~/going; do sleep 20; done"), chromedp.KeyEvent("\r"))
		ctx, cancel := context.WithTimeout(t.ctx, 10*time.Second)
		err := chromedp.Do(ctx, shows)
		cancel()
		if err == nil {
			return
		}
	}
	t.shot("nothing-runs")
	t.Fatal("nothing can be typed in the terminal")
}

// key presses one in the editor.
func (t *ideTab) key() error {
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

// runs returns the workspace, and an error if it does not run.
func (t *ideTab) runs() (api.Workspace, error) {
	w, err := t.server.api.Get(t.Context(), t.id)
	if err == nil && (w.Phase != "RUNNING" || w.DesiredState != "RUNNING") {
		err = fmt.Errorf("%s: phase %s, desired %s because of %s; last used %v by %s",
			t.name, w.Phase, w.DesiredState, str(w.DesiredCause), w.LastAccessAt, str(w.LastAccessKind))
	}
	return w, err
}

// runsFor watches that it never stops.
func (t *ideTab) runsFor(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
		if _, err := t.runs(); err != nil {
			return err
		}
	}
	return nil
}

// stopsByItself waits until idleness stops it, and watches for a minute that the
// tab, which wants to connect again, does not wake it.
func (t *ideTab) stopsByItself(within time.Duration) error {
	start := time.Now()
	for {
		w, err := t.server.api.Get(t.Context(), t.id)
		if err != nil {
			return err
		}
		if w.Phase == "STANDBY" && w.Operation == "NONE" {
			if str(w.StopReason) != "idle" {
				return fmt.Errorf("%s stopped: %s", t.name, str(w.StopReason))
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
	t.Logf("%s: its tab asked %d times", t.name, tries)
	if tries == 0 {
		return fmt.Errorf("%s: its tab did not try to connect again", t.name)
	}
	return nil
}
