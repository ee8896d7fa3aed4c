package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

// Setup adds what a workspace needs beyond its image to its setup. An error is that of the start.
type Setup func(ctx context.Context, row workspace.Workspace, s *agent.Setup) error

// setup returns what row's workspace needs beyond its image.
func (t *term) setup(ctx context.Context, row workspace.Workspace, l postgres.Launch) (s agent.Setup, err error) {
	s.Steps = projectSteps(l.Project)
	addDevcontainer(l.Project, row.ImageRef, &s)
	for _, add := range t.cfg.Setups {
		if err := add(ctx, row, &s); err != nil {
			return agent.Setup{}, err
		}
	}
	return s, nil
}

// extensionsTimeout is after how many seconds the installation of extensions is ended.
const extensionsTimeout = 300

// maxOnceName is how much of the name of a script is in that of its file, which has at most 100 characters.
const maxOnceName = 60

// projectSteps are the steps of what a workspace works on; nil: none. The name of the file of a step
// that runs once per home stays the same, also in later versions.
func projectSteps(p *workspace.Project) (steps []agent.Step) {
	if p == nil {
		return nil
	}
	for _, r := range p.Repositories {
		steps = append(steps, agent.Step{Name: r.URL, Clone: &r})
	}
	if extensions := p.AllExtensions(); len(extensions) > 0 {
		args := []string{account.IDEDir + "/bin/code-server", "--user-data-dir", path.Join(runtime.HomeDir, ".local/share/code-server")}
		for _, e := range extensions {
			args = append(args, "--install-extension", e)
		}
		list := sha256.Sum256([]byte(strings.Join(extensions, " ")))
		steps = append(steps, agent.Step{
			Name: "extensions", Timeout: extensionsTimeout, Once: fmt.Sprintf("extensions-%x", list[:6]), // another list is installed as well
			Script: &agent.Script{Commands: []agent.ScriptCommand{{Args: args}}, Dir: "."},
		})
	}
	if s := p.Scripts; s != nil {
		add := func(name, once, text string) {
			if text != "" {
				steps = append(steps, agent.Step{Name: name, Timeout: s.Timeout, Once: once, Script: &agent.Script{Commands: []agent.ScriptCommand{{Shell: text}}}})
			}
		}
		add("create", "script-create", s.Create)
		add("start", "", s.Start)
	}
	return steps
}

// addDevcontainer adds what a description of a repository has run. The scripts of the creation run
// again if they, or the image that they run in, are others.
func addDevcontainer(p *workspace.Project, image string, s *agent.Setup) {
	if p == nil || p.Devcontainer == nil {
		return
	}
	d := p.Devcontainer
	s.References, s.EditorSettings = d.References, d.Settings
	for _, script := range d.Scripts {
		step := agent.Step{Name: script.Name, Script: &agent.Script{Dir: d.Folder}}
		for _, c := range script.Commands {
			step.Script.Commands = append(step.Script.Commands, agent.ScriptCommand(c))
		}
		if script.Once {
			text, _ := json.Marshal([]any{image, d.Folder, script})
			step.Timeout = workspace.MaxScriptTimeout
			name := strings.ReplaceAll(strings.ToLower(script.Name), ".", "-") // with the ID of a Feature
			step.Once = fmt.Sprintf("devcontainer-%s-%.8x", name[:min(len(name), maxOnceName)], sha256.Sum256(text))
		}
		s.Steps = append(s.Steps, step)
	}
}

// sendSetup sends the setup to the agent of a container, which may have got it from an earlier
// attempt. It waits until the agent responds.
func (t *term) sendSetup(ctx context.Context, id workspace.ID, s agent.Setup) error {
	began := time.Now()
	for pause := probeMin; ; pause = min(2*pause, probeMax) {
		up, err := t.upstream(ctx, id)
		if errors.Is(err, runtime.ErrNotFound) && time.Since(began) > aliveInterval { // a view may be late
			return fmt.Errorf("the container exited before its setup%s", t.containerOutput(ctx, id))
		}
		if err == nil {
			err = (&agent.Client{Addr: up.Agent, Secret: up.Secret}).Setup(ctx, s)
		}
		var refused *agent.RefusedError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &refused) && (refused.Status == http.StatusConflict || refused.Status == http.StatusNotFound):
			// An earlier attempt has started the container without a setup: it gets it at the next start.
			t.cfg.Log.Info("workspace started without its setup", "workspace", id, "err", err)
			return nil
		case errors.As(err, &refused):
			return fmt.Errorf("send the workspace's setup: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (t *term) upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	return t.cfg.Runtime.Upstream(ctx, id)
}
