package inside

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// failedSuffix is that of a file in agent.StateDir of a step that runs once and has failed.
const failedSuffix = ".failed"

// maxLastLine is how many bytes of a line of the output a script's reason has.
const maxLastLine = 300

var onceID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,99}$`)

// errFailedBefore: an earlier start has tried it, and it is not run again unasked: the user may
// have done by hand what it could not.
var errFailedBefore = errors.New("failed at an earlier start")

// ranError is the error of a script that has run, rather than of one that could not.
type ranError struct{ error }

func (e ranError) Unwrap() error { return e.error }

// once runs what a step does, unless it has run in this home. A run that the end of the container
// interrupts is none.
func (s *Server) once(st *step, do func() error) error {
	id := st.spec.Once
	if id == "" {
		return do()
	}
	if !onceID.MatchString(id) {
		return stepError{"refused", "The name of its file is not one: " + id}
	}
	done := filepath.Join(s.cfg.Home, agent.StateDir, id)
	failed := done + failedSuffix
	if !st.again {
		if _, err := os.Lstat(done); err == nil {
			return errSkipped
		}
		if _, err := os.Lstat(failed); err == nil {
			return errFailedBefore
		}
	}
	err := do()
	s.setup.mu.Lock()
	ending := s.setup.ending
	s.setup.mu.Unlock()
	var ran ranError
	switch {
	case ending:
		return err
	case err == nil:
		_ = os.Remove(failed)
		s.leave(st, done)
	case errors.As(err, &ran):
		s.leave(st, failed)
	}
	return err
}

// leave makes a file by which the next start knows about a step. What stands in its place counts as
// one, and is not written to: it may be a pipe or a link.
func (s *Server) leave(st *step, name string) {
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		var f *os.File
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		switch {
		case err == nil:
			_, err = f.WriteString(time.Now().UTC().Format(time.RFC3339) + "\n")
			err = errors.Join(err, f.Close())
		case errors.Is(err, os.ErrExist):
			err = nil
		}
	}
	if err != nil {
		s.change(func() {
			st.note(fmt.Sprintf("The next start runs this again, since %s cannot be written: %v", name, err))
		})
	}
}

// note adds a line to the log, of which the end is kept.
func (st *step) note(line string) {
	st.log = append(append(st.log, line...), '\n')
	if n := len(st.log); n > 2*agent.MaxStepLog {
		st.log = append([]byte(nil), st.log[n-agent.MaxStepLog:]...)
	}
}

// script runs the commands of a script side by side, until all have ended.
func (s *Server) script(st *step) error {
	script := *st.spec.Script
	if n := len(script.Commands); n == 0 || n > agent.MaxScriptCommands {
		return stepError{"refused", fmt.Sprintf("It has %d commands. A script has 1 to %d.", n, agent.MaxScriptCommands)}
	}
	limit := agent.ScriptTimeout
	if st.spec.Timeout > 0 {
		limit = min(time.Duration(st.spec.Timeout)*time.Second, agent.MaxScriptTimeout)
	}
	dir, err := s.scriptDir(script.Dir)
	if err != nil {
		return err
	}
	var env []string
	for name, value := range script.Env {
		env = append(env, name+"="+value)
	}
	errs := make([]error, len(script.Commands))
	var running sync.WaitGroup
	for i, c := range script.Commands {
		running.Go(func() {
			out := &stepOutput{server: s, step: st}
			if len(script.Commands) > 1 {
				if c.Name == "" {
					c.Name = fmt.Sprint(i + 1)
				}
				out.prefix = "[" + c.Name + "] "
			}
			if err := s.scriptCommand(out, dir, env, limit, c); err != nil && len(script.Commands) > 1 {
				errs[i] = fmt.Errorf("%s: %w", c.Name, err)
			} else {
				errs[i] = err
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// scriptDir returns the folder that a script begins in. None runs in the folder of a repository that
// was not cloned, or around it.
func (s *Server) scriptDir(dir string) (string, error) {
	s.setup.mu.Lock()
	defer s.setup.mu.Unlock()
	var cloned []*step
	for _, other := range s.setup.steps {
		if other.spec.Clone != nil {
			cloned = append(cloned, other)
		}
	}
	if dir == "" {
		dir = workspace.ProjectDir
		if len(cloned) == 1 {
			dir = cloned[0].spec.Clone.Folder()
		}
	}
	if dir = path.Clean(dir); !filepath.IsLocal(dir) {
		return "", stepError{"refused", dir + " is not a folder below the home."}
	}
	for _, other := range cloned {
		folder := other.spec.Clone.Folder()
		if other.State == agent.StepFailed && dir != "." && (within(dir, folder) || within(folder, dir)) {
			return "", stepError{"not_cloned", other.Name + " was not cloned."}
		}
	}
	absolute := filepath.Join(s.cfg.Home, dir)
	if dir == workspace.ProjectDir {
		_ = os.MkdirAll(absolute, 0o755) // the IDE makes it too
	}
	if info, err := os.Stat(absolute); err != nil || !info.IsDir() {
		return "", stepError{"no_folder", absolute + " is not a folder."}
	}
	return absolute, nil
}

// within reports whether a folder is another one or in it; both are below the home.
func within(folder, other string) bool {
	return folder == other || other == "." || strings.HasPrefix(folder, other+"/")
}

// scriptCommand runs a command of a script.
func (s *Server) scriptCommand(out *stepOutput, dir string, env []string, limit time.Duration, c agent.ScriptCommand) error {
	args := c.Args
	if len(args) == 0 {
		shell := scriptShell()
		if shell == "" {
			return errors.New("the image has no shell")
		}
		args = []string{shell, "-c", c.Shell}
	}
	kills := oomKills()
	err := s.execute(out, dir, env, limit, args...)
	var exit *exec.ExitError
	var known stepError
	switch {
	case errors.As(err, &exit):
		known = ended(exit.ProcessState, oomKills() > kills)
	case !errors.As(err, &known):
		return err // it was not started
	}
	s.change(func() {
		for _, line := range out.last {
			known.words += "\n" + strings.ToValidUTF8(line[:min(len(line), maxLastLine)], "")
		}
	})
	return ranError{known}
}

// ended says how a script has ended.
func ended(state *os.ProcessState, oom bool) stepError {
	status, ok := state.Sys().(syscall.WaitStatus)
	signaled := ok && status.Signaled()
	switch {
	case oom && (signaled && status.Signal() == syscall.SIGKILL || state.ExitCode() == 128+int(syscall.SIGKILL)):
		return stepError{"memory", "It was killed, since the workspace was out of memory."}
	case signaled:
		return stepError{"exit", fmt.Sprintf("It was ended by %s.", unix.SignalName(status.Signal()))}
	}
	return stepError{"exit", fmt.Sprintf("It ended with exit code %d.", state.ExitCode())}
}

// scriptShell returns the shell of scripts, which does not depend on the user's own; empty: the image
// has none.
func scriptShell() string {
	for _, shell := range shells {
		if unix.Access(shell, unix.X_OK) == nil {
			return shell
		}
	}
	return ""
}
