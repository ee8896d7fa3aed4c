package inside

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

const (
	// memoryDir is where the files of a setup are: a file system in memory that containers have
	// in Docker and in Kubernetes, and that only this container sees.
	memoryDir = "/dev/shm/codehub"
	// setupPatience is how long the IDE waits for a setup. Then the container ends, so that the
	// controller decides.
	setupPatience = 10 * time.Minute
	// killPause is how long the processes of a step have to end at its time limit, and
	// outputPause how long its output is read after its end.
	killPause, outputPause = 5 * time.Second, 2 * time.Second
	maxLine                = 4 << 10 // bytes of a line of a step's output
	lastLines              = 8       // lines of it that are kept for the reason of a failure
)

// setup is what the server has sent, and how far it is.
type setup struct {
	taken chan struct{} // closed with got

	mu      sync.Mutex
	got     bool
	env     []string // NAME=value
	files   []agent.File
	editor  []byte // agent.Setup.EditorSettings
	steps   []*step
	running bool // runSteps runs
	ending  bool // the container ends: no further step runs, and what is ended now has not failed
}

// step is a step and how far it is.
type step struct {
	agent.StepStatus
	spec  agent.Step
	log   []byte
	again bool // it runs also if it has run in this home
}

// run is what a kind of step does. It returns nil or errSkipped if it was successful.
func (s *Server) run(st *step) error {
	switch {
	case st.Kind == agent.KindFiles:
		return s.writeFiles("")
	case st.Kind == agent.KindSettings:
		return s.addEditorSettings()
	case st.spec.Clone != nil:
		err := s.clone(st)
		if err == nil || errors.Is(err, errSkipped) {
			// A file that is not written is no step that was skipped.
			if failed := s.writeFiles(st.spec.Clone.Folder()); failed != nil {
				return failed
			}
		}
		return err
	case st.spec.Script != nil:
		return s.once(st, func() error { return s.script(st) })
	case st.spec.Dotfiles != nil:
		return s.once(st, func() error { return s.dotfiles(st) })
	case st.spec.Fail != "":
		return stepError{"server", st.spec.Fail}
	}
	return stepError{"unknown", "The workspace was started by an earlier version of codehub. Restart it."}
}

// errSkipped: there is nothing to do.
var errSkipped = errors.New("skipped")

// stepError is why a step failed: a reason that pages translate, and words for people.
type stepError struct{ reason, words string }

func (e stepError) Error() string { return e.words }

// takeSetup takes the server's setup.
func (s *Server) takeSetup(w http.ResponseWriter, r *http.Request) {
	var given agent.Setup
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, agent.MaxSetup)).Decode(&given); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("read the setup: %w", err))
		return
	}
	if !s.cfg.AwaitsSetup {
		refuse(w, http.StatusConflict, errors.New("the workspace has started without a setup"))
		return
	}
	if len(given.Steps) > agent.MaxSteps || len(given.Files) > agent.MaxFiles {
		refuse(w, http.StatusBadRequest, errors.New("the setup has too many steps or files"))
		return
	}
	if s.setup.take(given) {
		if err := s.writeFiles(""); err != nil {
			s.setup.fail(&step{StepStatus: agent.StepStatus{Name: agent.KindFiles, Kind: agent.KindFiles}}, err)
		}
		if err := s.addEditorSettings(); err != nil {
			s.setup.fail(&step{StepStatus: agent.StepStatus{Name: agent.KindSettings, Kind: agent.KindSettings}}, err)
		}
		close(s.setup.taken)
		s.setup.begin(s.runSteps)
	}
	respond(w, http.StatusOK, s.setup.status(s.cfg.AwaitsSetup))
}

// take keeps the first setup.
func (u *setup) take(given agent.Setup) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.got {
		return false
	}
	u.got, u.files = true, given.Files
	for name, value := range given.Env {
		u.env = append(u.env, name+"="+value)
	}
	container := append(os.Environ(), u.env...)
	for name, value := range given.References {
		u.env = append(u.env, name+"="+expand(value, container))
	}
	slices.Sort(u.env)
	u.editor = given.EditorSettings
	for _, each := range given.Steps {
		u.steps = append(u.steps, newStep(each))
	}
	return true
}

func newStep(spec agent.Step) *step {
	st := &step{spec: spec, again: spec.Again, StepStatus: agent.StepStatus{Name: spec.Name, Kind: "unknown", State: agent.StepWaiting}}
	switch {
	case spec.Clone != nil:
		st.Kind = agent.KindClone
	case spec.Script != nil:
		st.Kind = agent.KindScript
	case spec.Dotfiles != nil:
		st.Kind = agent.KindDotfiles
	case spec.Fail != "":
		st.Kind = agent.KindServer
	}
	return st
}

// runStep runs a further step.
func (s *Server) runStep(w http.ResponseWriter, r *http.Request) {
	var given agent.Step
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, agent.MaxSetup)).Decode(&given); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("read the step: %w", err))
		return
	}
	if err := s.setup.add(newStep(given), s.cfg.AwaitsSetup); err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	s.setup.begin(s.runSteps)
	respond(w, http.StatusOK, s.setup.status(s.cfg.AwaitsSetup))
}

// add adds a step after the others, in the place of an earlier one of its kind and name. There is
// one step of dotfiles, so that a retry does not bring back those of an earlier repository.
func (u *setup) add(st *step, awaited bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if awaited && !u.got {
		return errors.New("the setup has not begun")
	}
	at := slices.IndexFunc(u.steps, func(other *step) bool {
		return other.Kind == st.Kind && (other.Name == st.Name || st.Kind == agent.KindDotfiles)
	})
	switch {
	case at >= 0 && (u.steps[at].State == agent.StepRunning || u.steps[at].State == agent.StepWaiting):
		return errors.New("the step is still running")
	case at >= 0:
		u.steps = slices.Delete(u.steps, at, at+1)
	case len(u.steps) >= agent.MaxSteps:
		return errors.New("there are too many steps")
	}
	u.steps = append(u.steps, st)
	return nil
}

// fail adds a step that has failed.
func (u *setup) fail(st *step, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	st.ended(err)
	u.steps = append([]*step{st}, u.steps...)
}

// begin runs the steps that wait, unless they run.
func (u *setup) begin(run func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.running && u.next() != nil {
		u.running = true
		go run()
	}
}

// next returns the next step that waits, or nil.
func (u *setup) next() *step {
	for _, st := range u.steps {
		if st.State == agent.StepWaiting {
			return st
		}
	}
	return nil
}

// status returns how far the setup is.
func (u *setup) status(awaited bool) agent.SetupStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := agent.SetupStatus{Waiting: awaited && !u.got}
	for _, st := range u.steps {
		each := st.StepStatus
		each.Log = agent.PrintableLog(string(st.log))
		out.Steps = append(out.Steps, each)
	}
	return out
}

// environ returns the agent's environment and that of the setup, with the agent's own variables.
func (s *Server) environ() []string {
	s.setup.mu.Lock()
	env := append(append(os.Environ(), s.env...), s.setup.env...)
	s.setup.mu.Unlock()
	return s.withGit(env) // looks at folders of the PATH
}

func (s *Server) setupStatus(w http.ResponseWriter, _ *http.Request) {
	respond(w, http.StatusOK, s.setup.status(s.cfg.AwaitsSetup))
}

// retrySetup runs the failed steps again, also those that an earlier start has left failed.
func (s *Server) retrySetup(w http.ResponseWriter, _ *http.Request) {
	s.setup.mu.Lock()
	if s.setup.running {
		s.setup.mu.Unlock()
		refuse(w, http.StatusConflict, errors.New("the setup is still running"))
		return
	}
	for _, st := range s.setup.steps {
		if st.Retries() {
			st.again = true
			st.StepStatus = agent.StepStatus{Name: st.Name, Kind: st.Kind, State: agent.StepWaiting}
			st.log = nil
		}
	}
	s.setup.mu.Unlock()
	s.setup.begin(s.runSteps)
	respond(w, http.StatusOK, s.setup.status(s.cfg.AwaitsSetup))
}

// runSteps runs the steps that wait, in their order. Meanwhile the workspace does not count as
// idle.
func (s *Server) runSteps() {
	defer s.holders.Add("codehub setup")()
	for {
		s.setup.mu.Lock()
		st := s.setup.next()
		if st == nil || s.setup.ending {
			s.setup.running = false
			s.setup.mu.Unlock()
			s.environ() // a step may have installed gh or glab
			return
		}
		st.State, st.Started = agent.StepRunning, time.Now().Unix()
		s.setup.mu.Unlock()
		err := s.run(st)
		s.setup.mu.Lock()
		st.ended(err)
		s.setup.mu.Unlock()
		if st.State == agent.StepFailed {
			s.cfg.Log.Warn("step of the setup failed", "step", st.Name, "err", err)
		}
	}
}

// ended records how a step has ended.
func (st *step) ended(err error) {
	st.State, st.Percent, st.Detail, st.Ended = agent.StepDone, 100, "", time.Now().Unix()
	var known stepError
	switch {
	case errors.Is(err, errSkipped):
		st.State = agent.StepSkipped
	case errors.Is(err, errFailedBefore):
		st.State, st.Reason = agent.StepSkipped, agent.ReasonFailedBefore
	case err != nil:
		st.State, st.Percent, st.Error = agent.StepFailed, 0, err.Error()
		if errors.As(err, &known) {
			st.Reason = known.reason
		}
	}
}

// end is called before the agent ends the processes of the container.
func (s *Server) end() { s.change(func() { s.setup.ending = true }) }

// change changes a step's status, which others read.
func (s *Server) change(change func()) {
	s.setup.mu.Lock()
	defer s.setup.mu.Unlock()
	change()
}

// writeFiles writes the setup's files in the folder of a repository, or "" for those in none, to
// memory, and links to them. What has the place of a link stays, unless it is such a link.
func (s *Server) writeFiles(folder string) error {
	var files []agent.File
	s.setup.mu.Lock()
	for _, f := range s.setup.files {
		if s.setup.folderOf(f) == folder {
			files = append(files, f)
		}
	}
	s.setup.mu.Unlock()
	if len(files) == 0 {
		return nil
	}
	if err := s.makeFilesDir(); err != nil {
		return err
	}
	var failed []error
	for _, f := range files {
		// The name depends on the path alone, so that an earlier link never leads to another file.
		target := filepath.Join(s.cfg.FilesDir, fmt.Sprintf("%.8x-%s", sha256.Sum256([]byte(f.Path)), filepath.Base(f.Path)))
		mode := os.FileMode(f.Mode & 0o777)
		if mode == 0 {
			mode = 0o600
		}
		if err := s.writeFile(target, f.Content, mode, f.Path); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func (s *Server) makeFilesDir() error {
	if err := os.MkdirAll(s.cfg.FilesDir, 0o700); err != nil {
		return fmt.Errorf("make the folder of files in memory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.cfg.FilesDir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("%s is not in memory, so no files are written to it", s.cfg.FilesDir)
	}
	return nil
}

func (s *Server) writeFile(target string, content []byte, mode os.FileMode, link string) error {
	if !filepath.IsAbs(link) {
		link = filepath.Join(s.cfg.Home, link)
	}
	if old, err := os.Readlink(link); err == nil && strings.HasPrefix(old, s.cfg.FilesDir+"/") {
		if err := os.Remove(link); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(link); err == nil {
		return fmt.Errorf("%s exists already, and stays as it is", link)
	}
	_ = os.Remove(target)
	if err := os.WriteFile(target, content, mode); err != nil {
		return err
	}
	if err := os.Chmod(target, mode); err != nil { // the umask may have changed it
		return err
	}
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, link)
}

// runCommand runs a program of a step with the setup's environment until its end or the time
// limit. Its output is the step's log.
func (s *Server) runCommand(st *step, dir string, env []string, fallback time.Duration, args ...string) error {
	limit := fallback
	if st.spec.Timeout > 0 {
		limit = time.Duration(st.spec.Timeout) * time.Second
	}
	return s.execute(&stepOutput{server: s, step: st}, dir, env, limit, args...)
}

// execute is runCommand with this output and limit. At the limit it ends the program's process
// group. What the program leaves in the background at its own end goes on, and is read further.
func (s *Server) execute(out *stepOutput, dir string, env []string, limit time.Duration, args ...string) error {
	user := currentUser()
	all := append(s.environ(), "HOME="+s.cfg.Home, "USER="+user.name, "LOGNAME="+user.name, "SHELL="+user.shell, gitWait)
	all = append(all, env...)
	program, err := lookPath(args[0], all, dir)
	if err != nil {
		return err
	}
	output, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	cmd := &exec.Cmd{Path: program, Args: args, Env: all, Dir: dir, Stdout: theirs, Stderr: theirs, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}
	err = s.cfg.Processes.Start(cmd)
	theirs.Close()
	if err != nil {
		output.Close()
		return whyNotStarted(cmd.Path, err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer output.Close()
		_, _ = io.Copy(out, onlyReader{output})
	}()
	timer := time.AfterFunc(limit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) })
	kill := time.AfterFunc(limit+killPause, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	err = s.cfg.Processes.Wait(cmd)
	inTime := timer.Stop()
	kill.Stop()
	if !inTime {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left
	}
	select {
	case <-read:
	case <-time.After(outputPause):
	}
	out.flush()
	if !inTime {
		return stepError{"time", fmt.Sprintf("It was ended after its time limit of %s.", limit)}
	}
	return err
}

// stepOutput is the output of a step's program: its lines are the log, and what a program prints
// over and over on one line is its progress.
type stepOutput struct {
	server *Server
	step   *step
	prefix string // of each line in the log
	line   []byte
	last   []string // lines
}

var _ io.Writer = (*stepOutput)(nil)

func (o *stepOutput) Write(p []byte) (int, error) {
	o.server.change(func() {
		for _, c := range p {
			switch {
			case c == '\n':
				o.end(true)
			case c == '\r':
				o.end(false)
			case len(o.line) < maxLine:
				o.line = append(o.line, c)
			}
		}
	})
	return len(p), nil
}

func (o *stepOutput) flush() { o.server.change(func() { o.end(true) }) }

// end ends a line, which the next one replaces unless keep is set.
func (o *stepOutput) end(keep bool) {
	line := strings.TrimSpace(string(o.line))
	o.line = o.line[:0]
	if line == "" {
		return
	}
	if o.step.State == agent.StepRunning { // a process in the background has no progress
		o.step.Detail = line
	}
	if o.step.spec.Clone != nil || o.step.spec.Dotfiles != nil {
		o.step.Percent = max(o.step.Percent, clonePercent(line))
	}
	if !keep {
		return
	}
	if o.last = append(o.last, line); len(o.last) > lastLines {
		o.last = o.last[1:]
	}
	o.step.note(o.prefix + line)
}

var gitProgress = regexp.MustCompile(`(Receiving objects|Resolving deltas|Updating files|Filtering content): +([0-9]+)%`)

// clonePercent returns how much of a clone is done by a line of git's progress.
func clonePercent(line string) int {
	found := gitProgress.FindStringSubmatch(line)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[2])
	switch found[1] {
	case "Receiving objects":
		return n * 70 / 100
	case "Resolving deltas":
		return 70 + n*15/100
	case "Updating files":
		return 85 + n*10/100
	}
	return 95 + n*4/100
}

// folderOf returns the folder of a repository that the file lies in, or "". Such a file is written
// after the clone, which takes no folder with files.
func (u *setup) folderOf(f agent.File) string {
	for _, st := range u.steps {
		if st.spec.Clone != nil && strings.HasPrefix(f.Path, st.spec.Clone.Folder()+"/") {
			return st.spec.Clone.Folder()
		}
	}
	return ""
}
