package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"codehub/internal/workspace"
)

// PathSetup is where the agent takes a Setup (POST) and reports its SetupStatus (GET), and
// PathRetry runs the steps again that have failed. PathSteps runs further ones.
const (
	PathSetup = "/v1/setup"
	PathRetry = "/v1/setup/retry"
	PathSteps = "/v1/setup/steps"
)

// Limits of a setup.
const (
	MaxSetup = 16 << 20 // bytes of a Setup as JSON, in which a byte of a variable takes up to six
	MaxSteps = 64
	MaxFiles = 256
	// MaxStepLog is how many bytes of a step's output are kept: the last ones.
	MaxStepLog = 16 << 10

	maxSetupStatus = 4 << 20 // bytes of a SetupStatus as JSON
	maxStepText    = 1000    // characters of a step's name, detail and path
)

// The time limit of a script, and how many commands one may run side by side.
const (
	ScriptTimeout, MaxScriptTimeout = 10 * time.Minute, time.Hour
	MaxScriptCommands               = 16
)

// Setup is what a workspace needs beyond its image. It is never in the container's configuration.
// An agent takes one; the first one counts.
type Setup struct {
	// Env is added to the environment of the IDE, commands and steps: by name.
	Env map[string]string `json:"env,omitempty"`
	// References are further variables. In their values ${containerEnv:NAME} and
	// ${containerEnv:NAME:DEFAULT} stand for a variable of the container.
	References map[string]string `json:"references,omitempty"`
	// EditorSettings are added to the settings of the IDE in this workspace: a JSON object. A setting
	// that the user changed stays.
	EditorSettings json.RawMessage `json:"editor_settings,omitempty"`
	Files          []File          `json:"files,omitempty"`
	// Steps run in this order as the workspace's user, while the IDE starts.
	Steps []Step `json:"steps,omitempty"`
}

// Empty reports whether there is nothing to set up.
func (s Setup) Empty() bool {
	return len(s.Env) == 0 && len(s.References) == 0 && len(s.EditorSettings) == 0 && len(s.Files) == 0 && len(s.Steps) == 0
}

// Clear overwrites the contents of the files, once they are no longer needed.
func (s Setup) Clear() {
	for _, f := range s.Files {
		clear(f.Content)
	}
}

// File is a file in memory.
type File struct {
	// Path is where the workspace has a link to it; relative paths begin at the home.
	Path    string `json:"path"`
	Mode    uint32 `json:"mode,omitempty"` // 0: 0600
	Content []byte `json:"content"`
}

// Step is a step of the setup. It has one kind: the field that is set.
type Step struct {
	// Name identifies the step within its setup, and is for people: "https://git.example/api".
	Name string `json:"name"`
	// Timeout is after how many seconds it is ended; 0: the default of its kind.
	Timeout int `json:"timeout,omitempty"`

	// Once makes a script run once per home: after its success there is a file of this name in
	// StateDir. After a failure it runs again only if that is asked for.
	Once string `json:"once,omitempty"`
	// Again runs a step that runs once also if it has run.
	Again bool `json:"again,omitempty"`

	Clone  *workspace.Repository `json:"clone,omitempty"`
	Script *Script               `json:"script,omitempty"`
	// Dotfiles is the repository of the user's dotfiles. Only its URL and Branch count.
	Dotfiles *workspace.Repository `json:"dotfiles,omitempty"`
	// Fail is why the server could not do what the step is for: the step fails with these words.
	Fail string `json:"fail,omitempty"`
}

// StateDir is the folder below the home with the files by which steps that run once know that they
// have run. Archives have it, as they have the home.
const StateDir = ".local/state/codehub"

// Script is commands that run side by side as the workspace's user, with the environment of a
// terminal. What they leave in the background goes on.
type Script struct {
	Commands []ScriptCommand `json:"commands"`
	// Dir is the folder below the home that they begin in. Empty: that of the only repository, or
	// workspace.ProjectDir.
	Dir string            `json:"dir,omitempty"`
	Env map[string]string `json:"env,omitempty"` // further variables
}

// ScriptCommand is a text for bash, or for sh in an image without bash, or a program with its
// arguments.
type ScriptCommand struct {
	Name  string   `json:"name,omitempty"` // for the log, if there are several
	Shell string   `json:"shell,omitempty"`
	Args  []string `json:"args,omitempty"`
}

// StepState is the state of a step.
type StepState string

const (
	StepWaiting StepState = "waiting"
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepSkipped StepState = "skipped" // an earlier start has done it, or tried to: ReasonFailedBefore
	StepFailed  StepState = "failed"
)

// The kinds of steps.
const (
	KindClone    = "clone"
	KindScript   = "script"
	KindDotfiles = "dotfiles"
	KindServer   = "server" // Step.Fail
	KindFiles    = "files"  // of the setup's files; only there if one could not be written
	// KindSettings is that of Setup.EditorSettings; only there if they could not be written.
	KindSettings = "settings"
)

// ReasonFailedBefore is the reason of a step that is skipped since it failed at an earlier start.
const ReasonFailedBefore = "earlier"

// SetupStatus is how far the setup is.
type SetupStatus struct {
	// Waiting: the IDE is not started before the agent has got a Setup.
	Waiting bool         `json:"waiting,omitempty"`
	Steps   []StepStatus `json:"steps,omitempty"`
}

// StepStatus is how far a step is.
type StepStatus struct {
	Name  string    `json:"name"`
	Kind  string    `json:"kind"`
	State StepState `json:"state"`
	// Percent is how much of it is done, 0 if that is unknown, and Detail what it does: a line of
	// its output.
	Percent int    `json:"percent,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Reason is why it failed, for programs, and Error for people: the words of the program that
	// failed, on several lines.
	Reason string `json:"reason,omitempty"`
	Error  string `json:"error,omitempty"`
	Log    string `json:"log,omitempty"` // the end of its output
	// Started and Ended are in seconds since 1970; 0: not yet.
	Started int64 `json:"started,omitempty"`
	Ended   int64 `json:"ended,omitempty"`
	// Folder is the absolute path of what it has cloned, and File that of the only *.code-workspace
	// file in it.
	Folder string `json:"folder,omitempty"`
	File   string `json:"file,omitempty"`
	// Described reports that the repository describes its environment: see Client.Descriptions.
	Described bool `json:"described,omitempty"`
}

// Running reports whether a step runs or waits.
func (s SetupStatus) Running() bool { return s.has(StepRunning) || s.has(StepWaiting) }

// Failed reports whether a step has failed.
func (s SetupStatus) Failed() bool { return s.has(StepFailed) }

// Retries reports whether RetrySetup would run a step.
func (s SetupStatus) Retries() bool { return slices.ContainsFunc(s.Steps, StepStatus.Retries) }

// Retries reports whether RetrySetup runs the step again.
func (s StepStatus) Retries() bool {
	return s.State == StepFailed || s.State == StepSkipped && s.Reason == ReasonFailedBefore
}

func (s SetupStatus) has(state StepState) bool {
	for _, step := range s.Steps {
		if step.State == state {
			return true
		}
	}
	return false
}

// Setup sets the workspace up. A repeated call changes nothing. An agent whose IDE did not
// wait for it refuses it.
func (c *Client) Setup(ctx context.Context, s Setup) error {
	body, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode the setup: %w", err)
	}
	defer clear(body)
	var status SetupStatus
	return c.ask(ctx, http.MethodPost, PathSetup, body, maxSetupStatus, &status)
}

// SetupStatus reports how far the setup is.
func (c *Client) SetupStatus(ctx context.Context) (SetupStatus, error) {
	var s SetupStatus
	err := c.ask(ctx, http.MethodGet, PathSetup, nil, maxSetupStatus, &s)
	return s.checked(), err
}

// RetrySetup runs the failed steps again, also those that failed at an earlier start. It is refused while a step runs.
func (c *Client) RetrySetup(ctx context.Context) (SetupStatus, error) {
	var s SetupStatus
	err := c.ask(ctx, http.MethodPost, PathRetry, nil, maxSetupStatus, &s)
	return s.checked(), err
}

// RunStep runs a further step, in the place of one with its kind and name. It is refused while that
// one runs or waits, and until the agent has its setup.
func (c *Client) RunStep(ctx context.Context, step Step) (SetupStatus, error) {
	var s SetupStatus
	body, err := json.Marshal(step)
	if err != nil {
		return s, fmt.Errorf("encode the step: %w", err)
	}
	err = c.ask(ctx, http.MethodPost, PathSteps, body, maxSetupStatus, &s)
	return s.checked(), err
}

// checked returns s without what no honest agent reports.
func (s SetupStatus) checked() SetupStatus {
	s.Steps = s.Steps[:min(len(s.Steps), MaxSteps+1)]
	for i := range s.Steps {
		step := &s.Steps[i]
		for _, text := range []*string{&step.Name, &step.Kind, &step.Detail, &step.Reason, &step.Folder, &step.File} {
			*text = printable(*text, maxStepText)
		}
		switch step.State {
		case StepWaiting, StepRunning, StepDone, StepSkipped, StepFailed:
		default:
			step.State = StepFailed
		}
		step.Percent = min(max(step.Percent, 0), 100)
		step.Started, step.Ended = min(max(step.Started, 0), maxSeconds), min(max(step.Ended, 0), maxSeconds)
		step.Error, step.Log = PrintableLog(step.Error), PrintableLog(step.Log)
	}
	return s
}

// PrintableLog returns the last MaxStepLog bytes of a text, without what is neither printable nor
// the end of a line.
func PrintableLog(text string) string {
	if len(text) > MaxStepLog {
		text = text[len(text)-MaxStepLog:]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', unicode.IsPrint(r):
			return r
		case r == '\t':
			return ' '
		}
		return -1
	}, strings.ToValidUTF8(text, ""))
}
