// Package devcontainers has workspaces use the files by which their repositories describe their
// environment: the agent reads them, package devcontainer parses them, and the database keeps what
// the next start uses.
package devcontainers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
)

// Reasons why this server does not honour something that package devcontainer reads.
const (
	ReasonImageBad        devcontainer.Reason = "image_bad" // not the name of an image
	ReasonImageNotAllowed devcontainer.Reason = "image_not_allowed"
	ReasonSize            devcontainer.Reason = "size"      // no size is that large
	ReasonEnvValue        devcontainer.Reason = "env_value" // too long, or with control characters
	ReasonPortOwn         devcontainer.Reason = "port_own"  // of codehub
	ReasonTooMany         devcontainer.Reason = "too_many"  // commands, ports or extensions
)

// Reasons are all reasons, for those who have texts for them.
var Reasons = append(slices.Clone(devcontainer.Reasons), ReasonImageBad, ReasonImageNotAllowed, ReasonSize, ReasonEnvValue, ReasonPortOwn, ReasonTooMany)

// Agents reads the files in running workspaces (*attach.Attacher). It wakes none, and is no use.
type Agents interface {
	Descriptions(ctx context.Context, id workspace.ID) (agent.Descriptions, error)
}

// Secrets are those that a user has (*secrets.Service).
type Secrets interface {
	List(ctx context.Context, caller workspace.Caller) (api.SecretList, error)
}

// Config holds what a Service needs.
type Config struct {
	Store   *postgres.DB
	Agents  Agents
	Secrets Secrets // optional
	Images  imageref.Allowed
	Sizes   workspace.Sizes
	Builder *Builder // nil: this server builds no images
}

// Service is safe for concurrent use.
type Service struct{ cfg Config }

// New returns a Service.
func New(cfg Config) *Service { return &Service{cfg} }

// file is a description with what the workspace would use of it.
type file struct {
	api    api.Devcontainer
	uses   *workspace.Devcontainer // nil: it has a problem
	e      devcontainer.Environment
	place  devcontainer.Place
	folder string // of the repository, below the home
	name   string // of the file, below that
}

// builds reports whether an image has to be built before the workspace can use the file.
func (f file) builds() bool { return f.e.Build != nil || len(f.e.Features) > 0 }

// List returns the descriptions in the repositories of the caller's workspace, as they are now.
// CodeNotRunning; CodeUnavailable.
func (s *Service) List(ctx context.Context, caller workspace.Caller, id workspace.ID) (api.DevcontainerList, error) {
	w, files, more, err := s.read(ctx, caller, id)
	out := api.DevcontainerList{Files: []api.Devcontainer{}, More: more}
	for _, f := range files {
		out.Files = append(out.Files, f.api)
	}
	if err == nil {
		switch b, buildErr := s.Build(ctx, caller, id); {
		case buildErr == nil:
			out.Build = &b
		case workspace.CodeOf(buildErr) != workspace.CodeNotFound:
			err = buildErr
		}
	}
	if err != nil || s.cfg.Secrets == nil || !slices.ContainsFunc(out.Files, func(f api.Devcontainer) bool { return len(f.Secrets) > 0 }) {
		return out, err
	}
	secrets, err := s.cfg.Secrets.List(ctx, caller)
	if err != nil {
		return out, err
	}
	for _, f := range out.Files {
		for i := range f.Secrets {
			f.Secrets[i].Present = slices.ContainsFunc(secrets.Secrets, func(has api.Secret) bool {
				return has.Env == f.Secrets[i].Name && (has.WorkspaceID == nil || *has.WorkspaceID == string(id)) &&
					(has.Template == nil || w.Template != nil && w.Template.Name == *has.Template)
			})
		}
	}
	return out, nil
}

// Build returns the last build of an image for the caller's workspace. CodeNotFound if there was none.
func (s *Service) Build(ctx context.Context, caller workspace.Caller, id workspace.ID) (api.DevcontainerBuild, error) {
	return s.cfg.Store.DevcontainerBuild(ctx, caller, id)
}

// CancelBuild ends the build for the caller's workspace, in a moment. CodeNotFound if there was none;
// CodeNotCancellable if it has ended.
func (s *Service) CancelBuild(ctx context.Context, caller workspace.Caller, id workspace.ID) (api.DevcontainerBuild, error) {
	return s.cfg.Store.CancelBuild(ctx, caller, id)
}

// Use has the next start of the caller's workspace use a description; see devcontainer.Choose for the
// name. Where an image has to be built, it begins a build, and builds is true: the
// workspace stays as it is, and uses the file when the build is done. digest is that of the version that was shown, or empty. CodeNotFound;
// CodeInvalid for a file with a problem or of another version; CodeOperationInProgress while another
// image is built for the owner; otherwise as List.
func (s *Service) Use(ctx context.Context, caller workspace.Caller, id workspace.ID, name, digest string) (w workspace.Workspace, builds bool, err error) {
	w, files, _, err := s.read(ctx, caller, id)
	if err != nil {
		return w, false, err
	}
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.api.File
	}
	i, ok := devcontainer.Choose(paths, name)
	if !ok {
		return w, false, workspace.NotFound("description of the environment")
	}
	if f := files[i]; f.uses == nil {
		e := workspace.InvalidField("file", "cannot be used: "+f.api.Message)
		e.Details["reason"] = f.api.Problem
		return w, false, e
	}
	if digest != "" && digest != files[i].uses.Digest {
		return w, false, workspace.InvalidField("digest", "is of another version: the file has changed since it was shown. Look at it again.")
	}
	if files[i].builds() {
		return w, true, s.cfg.Builder.begin(ctx, caller, w, files[i])
	}
	w, err = s.use(ctx, caller, id, files[i].uses)
	return w, false, err
}

// use cancels a build, which would replace what is used now.
func (s *Service) use(ctx context.Context, caller workspace.Caller, id workspace.ID, d *workspace.Devcontainer) (workspace.Workspace, error) {
	switch _, err := s.CancelBuild(ctx, caller, id); workspace.CodeOf(err) {
	case workspace.CodeNotFound, workspace.CodeNotCancellable:
	default:
		if err != nil {
			return workspace.Workspace{}, err
		}
	}
	return s.cfg.Store.PatchWorkspace(ctx, caller, id, postgres.Patch{Devcontainer: workspace.Optional[workspace.Devcontainer]{Set: true, Value: d}})
}

// Stop has the next start of the caller's workspace use no description: the workspace gets back what
// it had before, except for what its owner has changed since.
func (s *Service) Stop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, err := s.cfg.Store.Workspace(ctx, caller, id)
	if err != nil || w.Project == nil || w.Project.Devcontainer == nil {
		return w, err
	}
	return s.use(ctx, caller, id, nil)
}

func (s *Service) read(ctx context.Context, caller workspace.Caller, id workspace.ID) (w workspace.Workspace, files []file, more bool, err error) {
	if w, err = s.cfg.Store.Workspace(ctx, caller, id); err != nil {
		return w, nil, false, err
	}
	if w.Phase != workspace.PhaseRunning {
		return w, nil, false, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	}
	found, err := s.cfg.Agents.Descriptions(ctx, id)
	switch {
	case errors.Is(err, attach.ErrNoAgent):
		return w, nil, false, workspace.Errorf(workspace.CodeUnavailable, "The workspace was started by another version of codehub. Restart it.")
	case errors.Is(err, runtime.ErrNotFound):
		return w, nil, false, workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	case err != nil:
		return w, nil, false, &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace is not responding. Try again later.", Err: err}
	}
	for _, d := range found.Files {
		// An agent reports other folders only if the workspace's user makes it.
		if !w.Project.Empty() && slices.ContainsFunc(w.Project.Repositories, func(r workspace.Repository) bool { return r.Folder() == d.Folder }) {
			files = append(files, s.plan(w, d))
		}
	}
	return w, files, found.More, nil
}

// plan returns what the workspace would use of a description.
func (s *Service) plan(w workspace.Workspace, d agent.Description) file {
	f := file{folder: d.Folder, name: d.Name, api: api.Devcontainer{
		File: path.Join(d.Folder, d.Name), Features: []string{}, Env: map[string]string{}, Ports: []api.ProjectPort{}, Scripts: []api.DevcontainerScript{}, Extensions: []string{},
		Settings: map[string]any{}, Secrets: []api.DevcontainerSecret{}, Ignored: []api.DevcontainerIgnored{},
	}}
	var used *workspace.Devcontainer
	if w.Project != nil && w.Project.Devcontainer != nil && w.Project.Devcontainer.File == f.api.File {
		used = w.Project.Devcontainer
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(d.Content))
	f.api.Used = used != nil
	f.api.Changed = used != nil && used.Digest != digest
	if d.Problem != "" {
		f.api.Problem, f.api.Message = d.Problem, problemText(d.Problem)
		return f
	}
	f.place = devcontainer.Place{Repository: path.Join(runtime.HomeDir, d.Folder), ID: string(w.ID), User: account.User, Builds: s.cfg.Builder != nil}
	e, err := devcontainer.Parse(d.Name, d.Content, f.place)
	var refused *devcontainer.Error
	if errors.As(err, &refused) {
		f.api.Problem, f.api.Line, f.api.Message = refused.Reason, refused.Line, refused.Error()+"."
		return f
	}
	p := &planner{s: s, w: w, e: e, ignored: slices.Clone(e.Ignored)}
	uses := p.uses()
	uses.File, uses.Digest = f.api.File, digest
	f.api.Digest = digest
	f.uses, f.e = &uses, e
	p.show(&f.api, uses)
	return f
}

func problemText(problem string) string {
	switch problem {
	case agent.ProblemLong:
		return "The file is too large."
	case agent.ProblemKind:
		return "The file is not a regular file."
	}
	return "The file cannot be read, or is a link out of the repository."
}

type planner struct {
	s       *Service
	w       workspace.Workspace
	e       devcontainer.Environment
	ignored []devcontainer.Ignored
}

func (p *planner) ignore(property string, reason devcontainer.Reason) {
	p.ignored = append(p.ignored, devcontainer.Ignored{Property: property, Line: max(1, p.e.Line(property)), Reason: reason})
}

func (p *planner) uses() workspace.Devcontainer {
	u := workspace.Devcontainer{Folder: strings.TrimPrefix(p.e.Folder, runtime.HomeDir+"/")}
	u.Given.Image, u.Given.Size = p.image(), p.size()
	u.Given.Env, u.References = p.env()
	u.Ports, u.Extensions = p.ports(), p.extensions()
	for _, s := range p.e.Scripts {
		if len(s.Commands) > agent.MaxScriptCommands {
			p.ignore(string(s.Hook), ReasonTooMany)
			continue
		}
		u.Scripts = append(u.Scripts, scriptOf(s))
	}
	for _, secret := range p.e.Secrets {
		u.Secrets = append(u.Secrets, secret.Name)
	}
	if len(p.e.Settings) > 0 {
		u.Settings, _ = json.Marshal(p.e.Settings)
	}
	return u
}

func scriptOf(s devcontainer.Script) workspace.DevcontainerScript {
	script := workspace.DevcontainerScript{Name: string(s.Hook), Once: s.Hook.Once()}
	for _, c := range s.Commands {
		script.Commands = append(script.Commands, workspace.DevcontainerCommand(c))
	}
	return script
}

// image returns the image that the workspace gets; empty: its own stays.
func (p *planner) image() string {
	switch {
	case p.e.Image == "":
		return ""
	case !imageref.Valid(p.e.Image):
		p.ignore("image", ReasonImageBad)
		return ""
	case !p.s.cfg.Images.Allows(p.e.Image, p.w.OwnerID):
		p.ignore("image", ReasonImageNotAllowed)
		return ""
	}
	return p.e.Image
}

// size returns the smallest size with what the repository needs; empty: the workspace's own has it,
// or none has.
func (p *planner) size() string {
	n := p.e.Needs
	own := cmp.Or(p.w.Size, workspace.DefaultSize)
	if p.w.Project != nil && p.w.Project.Devcontainer != nil {
		own = p.w.Project.Devcontainer.Before.Size
	}
	fits := func(s workspace.Size) bool {
		return (s.NanoCPUs == 0 || s.Cores() >= n.CPUs) && (s.Memory == 0 || s.Memory >= n.Memory) && (s.Disk == 0 || s.Disk >= n.Storage)
	}
	if n == (devcontainer.Needs{}) || fits(p.s.cfg.Sizes.Of(workspace.SizeNamed(own))) {
		return ""
	}
	all := append([]workspace.Size{p.s.cfg.Sizes.Default}, p.s.cfg.Sizes.Offered...)
	all = slices.DeleteFunc(all, func(s workspace.Size) bool { return !fits(s) })
	if len(all) == 0 {
		p.ignore("hostRequirements", ReasonSize)
		return ""
	}
	// No limit is the largest one.
	limit := func(n int64) uint64 { return uint64(n) - 1 }
	return slices.MinFunc(all, func(a, b workspace.Size) int {
		return cmp.Or(cmp.Compare(limit(a.Memory), limit(b.Memory)), cmp.Compare(limit(a.NanoCPUs), limit(b.NanoCPUs)), cmp.Compare(limit(a.Disk), limit(b.Disk)))
	}).Name
}

// env returns the variables of the workspace, and those whose values name others of the container.
func (p *planner) env() (env, references map[string]string) {
	env, references = map[string]string{}, map[string]string{}
	for _, from := range []struct {
		property string
		values   map[string]string
	}{{"containerEnv", p.e.Env}, {"remoteEnv", p.e.RemoteEnv}} {
		for _, name := range slices.Sorted(maps.Keys(from.values)) {
			value := from.values[name]
			refers := from.property == "remoteEnv" && (name == "PATH" || strings.Contains(value, "${containerEnv:"))
			var err error
			if refers && name == "PATH" {
				err = environ.Check(map[string]string{"A": value})
			} else {
				err = environ.Check(map[string]string{name: value})
			}
			var refused *environ.Error
			switch {
			case errors.As(err, &refused) && (refused.Reason == environ.Long || refused.Reason == environ.BadValue || refused.Reason == environ.TooLarge):
				p.ignore(from.property+"."+name, ReasonEnvValue)
			case err != nil: // the parser has listed it
			case refers:
				references[name] = value
				delete(env, name)
			default:
				env[name] = value
			}
		}
	}
	return env, references
}

func (p *planner) ports() (list []workspace.ProjectPort) {
	for _, port := range p.e.Ports {
		property := "forwardPorts: " + strconv.Itoa(port.Port)
		switch {
		case workspace.ReservedPort(port.Port):
			p.ignore(property, ReasonPortOwn)
		case len(list) == workspace.MaxProjectPorts:
			p.ignore(property, ReasonTooMany)
		default:
			list = append(list, workspace.ProjectPort{
				Port: port.Port, Label: line(port.Label, workspace.MaxPortLabel), Open: port.Open,
			})
		}
	}
	return list
}

func (p *planner) extensions() (list []string) {
	for _, e := range p.e.Extensions {
		switch {
		case !workspace.ValidExtension(e):
			p.ignore("customizations.vscode.extensions: "+e, devcontainer.ReasonExtension)
		case len(list) == workspace.MaxExtensions:
			p.ignore("customizations.vscode.extensions: "+e, ReasonTooMany)
		default:
			list = append(list, e)
		}
	}
	return list
}

// line returns a text as one line of at most this many characters.
func line(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if workspace.Unprintable(r) {
			return ' '
		}
		return r
	}, text)
	if list := []rune(text); len(list) > most {
		text = string(list[:most-1]) + "…"
	}
	return strings.TrimSpace(text)
}

// show fills in what the workspace would use.
func (p *planner) show(out *api.Devcontainer, u workspace.Devcontainer) {
	e := p.e
	out.Name, out.Image, out.Size, out.Folder = e.Name, u.Given.Image, u.Given.Size, u.Folder
	if e.Build != nil {
		out.Dockerfile = e.Build.Dockerfile
	}
	for _, feature := range e.Features {
		out.Features = append(out.Features, feature.Reference)
	}
	maps.Copy(out.Env, u.Given.Env)
	maps.Copy(out.Env, u.References)
	for _, port := range u.Ports {
		out.Ports = append(out.Ports, api.ProjectPort(port))
	}
	for _, s := range u.Scripts {
		script := api.DevcontainerScript{Name: s.Name, Once: s.Once}
		for _, c := range s.Commands {
			script.Commands = append(script.Commands, api.DevcontainerCommand{Name: c.Name, Shell: c.Shell, Args: listed(c.Args)})
		}
		out.Scripts = append(out.Scripts, script)
	}
	out.Extensions = append(out.Extensions, u.Extensions...)
	maps.Copy(out.Settings, e.Settings)
	for _, s := range e.Secrets {
		out.Secrets = append(out.Secrets, api.DevcontainerSecret{Name: s.Name, Description: s.Description, URL: s.URL})
	}
	for _, i := range p.ignored {
		out.Ignored = append(out.Ignored, api.DevcontainerIgnored{Property: i.Property, Line: i.Line, Reason: string(i.Reason)})
	}
}

func listed(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
