package e2e

import (
	"fmt"
	"os/exec"
	"time"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/workspace"
)

// busyTTL is the idle timeout of workspaces that commands keep awake, which run for
// busyFor.
const (
	busyTTL = 30 * time.Second
	busyFor = 80 * time.Second
)

// busyWorkspace is a workspace without a tab.
type busyWorkspace struct {
	*server
	id, name string
}

// busyWorkspace creates one, stopped.
func (s *server) busyWorkspace(name string) busyWorkspace {
	s.Helper()
	id := s.create(api.CreateWorkspace{Name: name, DesiredState: new("STANDBY")})
	s.awaitPhase(id, "STANDBY")
	if _, err := s.api.Update(s.Context(), id, api.UpdateWorkspace{StandbyTTLSeconds: api.Value(int(busyTTL.Seconds()))}); err != nil {
		s.Fatal(err)
	}
	return busyWorkspace{s, id, name}
}

// letWorkCount turns on, on the workspace's page, that processes at work count as use.
func (w busyWorkspace) letWorkCount(b *browser) {
	w.Helper()
	b.do("open the dialog of idle timeouts", navigate(w.URL+"/workspaces/"+w.id), chromedp.WaitVisible("#menu-"+w.id+" summary"),
		chromedp.Click("#menu-"+w.id+" summary"), chromedp.Click("#"+cssID(w.id+"-timeouts")), chromedp.WaitVisible("dialog[open] #f-working"))
	b.do("let work count", chromedp.Click("label:has(#f-working)"), chromedp.Click("#dialog-form button[type=submit]"), until(`document.querySelector('dialog[open]') === null`))
	w.await(w.id, "kept awake by work", func(is api.Workspace) bool { return is.AwakeWhileWorking })
}

// begin starts the workspace and a command in it, and returns what the command ends with.
func (w busyWorkspace) begin(command string) (ended chan error) {
	w.Helper()
	w.setDesired(w.id, "RUNNING")
	w.awaitPhase(w.id, "RUNNING")
	cmd := exec.CommandContext(w.Context(), "docker", "exec", workspace.ID(w.id).DockerName(), "bash", "-c", command)
	ended = make(chan error, 1)
	go func() {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %s: %w: %s", w.name, command, err, out)
		}
		ended <- err
	}()
	return ended
}

// expectUse expects that the workspace runs until its command ends, because of this kind of
// use, and stops because of idleness then.
func (w busyWorkspace) expectUse(kind string, ended chan error, late time.Duration) error {
	for waiting := true; waiting; {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
			waiting = false
		case <-time.After(time.Second):
		}
		is, err := w.api.Get(w.Context(), w.id)
		if err != nil {
			return err
		}
		if is.Phase != "RUNNING" || is.DesiredState != "RUNNING" {
			return fmt.Errorf("%s: %s, desired %s, while its command ran; last used by %q", w.name, is.Phase, is.DesiredState, str(is.LastAccessKind))
		}
		if !waiting && str(is.LastAccessKind) != kind {
			return fmt.Errorf("%s: last used by %q, want %s", w.name, str(is.LastAccessKind), kind)
		}
	}
	for began := time.Now(); ; time.Sleep(time.Second) {
		is, err := w.api.Get(w.Context(), w.id)
		if err != nil {
			return err
		}
		if is.Phase == "STANDBY" && is.Operation == "NONE" {
			if str(is.StopReason) != "idle" {
				return fmt.Errorf("%s: stop reason %q, want idle", w.name, str(is.StopReason))
			}
			w.Logf("%s: in STANDBY %v after its command", w.name, time.Since(began).Round(time.Second))
			return nil
		}
		if time.Since(began) > busyTTL+late {
			return fmt.Errorf("%s is %s %v after its command; last used by %s", w.name, is.Phase, time.Since(began), str(is.LastAccessKind))
		}
	}
}

// shows expects that the workspace's page names a command as what keeps it awake.
func (w busyWorkspace) shows(b *browser, command string) {
	w.Helper()
	b.do("see what keeps "+w.name+" awake", navigate(w.URL+"/workspaces/"+w.id), until(fmt.Sprintf(
		`[...document.querySelectorAll('dt')].some(e => e.textContent === 'Kept awake by' && e.parentNode.textContent.includes(%q))`, command)))
}
