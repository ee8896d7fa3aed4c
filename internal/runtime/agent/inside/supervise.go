package inside

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lastingRun is how long the IDE must have run, and listened, for its end to be
	// followed by another start. An IDE that ends earlier never worked: the
	// container ends with its code, and the controller decides.
	lastingRun = 5 * time.Second
	// maxShortRuns is how many runs in a row may be shorter than that after one that
	// was not.
	maxShortRuns = 5
	// calmRun is how long it must have run for the pause to begin small again.
	calmRun  = time.Minute
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second

	// stopOthers is how long after a stop other processes are told to end, even if
	// the IDE has not, and lastWords how long they have after the IDE's end. Both
	// together are below the time after which the server's stop kills all.
	stopOthers = 3 * time.Second
	lastWords  = 2 * time.Second
)

// history decides whether the IDE is started again, by its earlier runs.
type history struct {
	lasted bool // one run was long enough
	short  int  // shorter runs since then
	pause  time.Duration
}

// next returns the pause before the next start. again is false if there is none.
func (h *history) next(ran time.Duration, listened bool) (pause time.Duration, again bool) {
	if listened && ran >= lastingRun {
		h.lasted, h.short = true, 0
	} else {
		h.short++
	}
	if !h.lasted || h.short >= maxShortRuns {
		return 0, false
	}
	if ran >= calmRun {
		h.pause = 0
	}
	h.pause = min(max(2*h.pause, minPause), maxPause)
	return h.pause, true
}

// supervisor runs the IDE: the image's own command.
type supervisor struct {
	command   []string
	env       []string
	processes *Processes
	signals   <-chan os.Signal
	listens   func() bool                // the IDE's port is open
	oomKills  func() int64               // processes that were killed since the memory was used up
	others    func(syscall.Signal) error // signals all other processes; ESRCH: there is none
	ending    func()                     // called before others are told to end; optional
	log       *slog.Logger
}

// end is how the IDE ended.
type end struct {
	code     int // as a shell would give it
	why      string
	ran      time.Duration
	listened bool
	stopped  bool // the agent was told to stop
}

// run starts the IDE, and again when it ends, until a signal stops the agent or history gives
// up on the IDE. It returns the agent's exit code.
func (s *supervisor) run() int {
	var h history
	for {
		e := s.once()
		if e.stopped {
			s.endOthers()
			return e.code
		}
		pause, again := h.next(e.ran, e.listened)
		if !again {
			s.log.Error("IDE ended and is not started again", "reason", e.why, "ran", e.ran.Round(time.Millisecond), "listened", e.listened)
			s.endOthers()
			return e.code
		}
		s.log.Warn("IDE ended; starting it again", "reason", e.why, "ran", e.ran.Round(time.Millisecond), "pause", pause)
		if s.stoppedWithin(pause) {
			s.endOthers()
			return e.code
		}
	}
}

// stops reports whether a signal ends the agent. All are passed on to the IDE.
func stops(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT}, sig)
}

// awaitSetup waits until the server has sent the setup. It returns an error at the end of the
// patience, or if a signal ends the agent.
func (s *supervisor) awaitSetup(taken <-chan struct{}, patience time.Duration) error {
	over := time.After(patience)
	for {
		select {
		case <-taken:
			return nil
		case <-over:
			return fmt.Errorf("the server has not sent the workspace's setup within %s", patience)
		case sig := <-s.signals:
			if stops(sig) {
				return fmt.Errorf("%s before the server has sent the workspace's setup", unix.SignalName(sig.(syscall.Signal)))
			}
		}
	}
}

func (s *supervisor) stoppedWithin(pause time.Duration) bool {
	over := time.After(pause)
	for {
		select {
		case <-over:
			return false
		case sig := <-s.signals:
			if stops(sig) {
				return true
			}
		}
	}
}

// once runs the IDE once.
func (s *supervisor) once() end {
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.env, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	began, kills := time.Now(), s.oomKills()
	if err := s.processes.Start(cmd); err != nil {
		return end{code: startCode(err), why: err.Error()}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.processes.Wait(cmd) // the state says how it ended
	}()
	look := 100 * time.Millisecond
	looks := time.NewTimer(look)
	defer looks.Stop()
	var tellOthers <-chan time.Time
	out := end{}
	for {
		select {
		case <-ended:
			// What it leaves in its own group would hold its port.
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			out.code, out.why = describe(cmd.ProcessState, s.oomKills() > kills)
			out.ran = time.Since(began)
			return out
		case sig := <-s.signals:
			_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal))
			if stops(sig) && !out.stopped {
				out.stopped, tellOthers = true, time.After(stopOthers)
			}
		case <-tellOthers:
			s.tellOthers()
		case <-looks.C:
			if out.listened = s.listens(); !out.listened {
				look = min(look*2, time.Second)
				looks.Reset(look)
			}
		}
	}
}

// startCode is the exit code of a shell for a command that cannot be started.
func startCode(err error) int {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return 127
	}
	return 126
}

// describe returns the exit code and the reason of a process's end.
func describe(state *os.ProcessState, oom bool) (code int, why string) {
	status, ok := state.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() {
		return state.ExitCode(), "exit code " + strconv.Itoa(state.ExitCode())
	}
	why = "killed by " + unix.SignalName(status.Signal())
	if oom && status.Signal() == syscall.SIGKILL {
		why += ": the workspace is out of memory"
	}
	return 128 + int(status.Signal()), why
}

// tellOthers tells all other processes to end: a login shell heeds only SIGHUP, and
// a process that is stopped only SIGCONT.
func (s *supervisor) tellOthers() {
	if s.ending != nil {
		s.ending()
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGCONT} {
		_ = s.others(sig)
	}
}

// endOthers gives all other processes time to end. The kernel kills the rest when
// the first process ends.
func (s *supervisor) endOthers() {
	if errors.Is(s.others(0), syscall.ESRCH) {
		return
	}
	s.tellOthers()
	for over := time.Now().Add(lastWords); time.Now().Before(over); time.Sleep(5 * time.Millisecond) {
		if errors.Is(s.others(0), syscall.ESRCH) {
			return
		}
	}
}

// listensOn reports whether a process of this network listens on a TCP port.
func listensOn(port int) bool {
	const listening = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // a kernel without IPv6
		}
		for line := range bytes.Lines(text) {
			fields := strings.Fields(string(line))
			if len(fields) > 3 && strings.HasSuffix(fields[1], suffix) && fields[3] == listening {
				return true
			}
		}
	}
	return false
}

// oomKills returns how many processes of this container the kernel has killed because
// the memory was used up, with version 2 or 1 of control groups; 0 if it is unknown.
func oomKills() int64 {
	for _, name := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if n, ok := strings.CutPrefix(lines.Text(), "oom_kill "); ok {
				kills, _ := strconv.ParseInt(n, 10, 64)
				return kills
			}
		}
	}
	return 0
}
