package lifecycle

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
)

// EnvChange changes the environment variables of a workspace.
type EnvChange struct {
	Replace bool               // remove all others
	Set     map[string]*string // by name; nil removes the variable
}

// SetEnv changes the environment variables of the workspace. The next start uses
// them; a container that exists keeps its own. CodeInvalid, with an *environ.Error,
// if the result is not allowed.
func SetEnv(w workspace.Workspace, change EnvChange) (Intent, error) {
	if err := Present(w); err != nil {
		return Intent{}, err
	}
	from := w.Env
	if change.Replace {
		from = nil
	}
	env, err := environ.Merge(from, change.Set)
	if err != nil {
		return Intent{}, InvalidEnv(err)
	}
	set, removed := []string{}, []string{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if was, had := w.Env[name]; !had || was != env[name] {
			set = append(set, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Env)) {
		if _, has := env[name]; !has {
			removed = append(removed, name)
		}
	}
	if len(set)+len(removed) == 0 {
		return unchanged(w), nil
	}
	if len(env) == 0 {
		env = nil
	}
	out := Intent{Workspace: w, Changed: true, Audit: Entry{AuditEnv, map[string]any{"set": set, "removed": removed}}}
	out.Workspace.Env = env
	return out, nil
}

// InvalidEnv is the refusal of an *environ.Error.
func InvalidEnv(err error) error {
	var e *environ.Error
	if !errors.As(err, &e) {
		return err
	}
	details := map[string]any{"field": "env", "reason": e.Reason}
	if e.Name != "" {
		details["name"] = e.Name
	}
	return &workspace.Error{Code: workspace.CodeInvalid, Message: "The environment variables are not allowed: " + e.Error() + ".", Details: details, Err: e}
}

// EnvWaits reports whether the environment variables of the workspace wait for its
// next start: its container was created with others.
func EnvWaits(w workspace.Workspace) bool {
	own, _, _ := strings.Cut(w.RunningEnv, workspace.SecretsMark)
	return w.Conditions.HasContainer() && own != environ.Digest(w.Env)
}

// LaunchDigest identifies the environment variables of a container, and the secrets that it gets.
// Package postgres compares the part behind the mark.
func LaunchDigest(env map[string]string, secrets string) string {
	if secrets == "" {
		return environ.Digest(env)
	}
	return environ.Digest(env) + workspace.SecretsMark + secrets
}
