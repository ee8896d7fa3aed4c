// Package templates has the templates that workspaces are created from: the built-in ones, those of
// a folder, and those that administrators saved. Of one name, a saved template comes before one of
// the folder, and that before a built-in one.
package templates

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
	"codehub/internal/workspace/template"
)

// Where a template is from.
const (
	FromBuiltIn = "built-in"
	FromFolder  = "folder"
	FromSaved   = "saved"
)

// Entry is a template with its origin.
type Entry struct {
	template.Template
	Text    string // YAML
	Source  string
	SavedAt time.Time // zero: built in
	SavedBy string    // of a saved one
}

// Config holds what a Service needs.
type Config struct {
	Settings
	Store        *postgres.DB
	DefaultImage string
	Images       imageref.Allowed
	Sizes        workspace.Sizes
	Log          *slog.Logger
	Conditions   *health.Monitor // nil: problems of the folder are only logged
	Every        time.Duration   // between two reads; 0: 5 s
}

// Service is safe for concurrent use.
type Service struct {
	cfg    Config
	folder *health.Condition

	mu      sync.Mutex // of files
	files   folder
	current atomic.Pointer[catalogue]
}

// catalogue is all templates as they were last read.
type catalogue struct {
	list     []Entry // in the order in which they are offered
	problems []error
}

func (c *catalogue) find(name string) *Entry {
	for i := range c.list {
		if c.list[i].Name == name {
			return &c.list[i]
		}
	}
	return nil
}

// New returns a Service with the built-in templates; the others follow with the first read.
func New(cfg Config) *Service {
	if cfg.Every <= 0 {
		cfg.Every = 5 * time.Second
	}
	s := &Service{cfg: cfg, files: folder{dir: cfg.Dir}, folder: cfg.Conditions.New(health.Config{
		Name: "templates", Failing: "templates have mistakes", Resolved: "templates are valid again", Level: slog.LevelWarn, Remind: time.Hour, Log: cfg.Log,
	})}
	s.current.Store(merge(nil, nil))
	return s
}

// merge returns the catalogue: those of the organization by name, then the built-in ones, each of which
// another template of its name replaces.
func merge(files []Entry, saved []Entry) *catalogue {
	own := map[string]Entry{}
	for _, e := range files {
		own[e.Name] = e
	}
	for _, e := range saved {
		own[e.Name] = e
	}
	var builtin []Entry
	for _, b := range template.BuiltIn() {
		e, replaced := own[b.Name]
		if delete(own, b.Name); !replaced {
			e = Entry{Template: b.Template, Text: b.Text, Source: FromBuiltIn}
		}
		builtin = append(builtin, e)
	}
	list := slices.SortedFunc(maps.Values(own), func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return &catalogue{list: append(list, builtin...)}
}

// Run reads the templates until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		if _, err := s.read(ctx); err != nil && ctx.Err() == nil {
			s.cfg.Log.Debug("read templates failed", "err", err) // the condition of the database has it
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// read reads the folder and the saved templates again.
func (s *Service) read(ctx context.Context) (*catalogue, error) {
	rows, err := s.cfg.Store.SavedTemplates(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	files, problems := s.files.read()
	var saved []Entry
	for _, row := range rows {
		t, err := template.Parse(row.Name, []byte(row.Text))
		if err != nil { // a newer server has saved it
			problems = append(problems, fmt.Errorf("%s: %w", row.Name, err))
			continue
		}
		saved = append(saved, Entry{Template: t, Text: row.Text, Source: FromSaved, SavedAt: row.SavedAt, SavedBy: row.SavedBy})
	}
	c := merge(files, saved)
	for _, e := range c.list {
		if e.Source == FromFolder {
			if err := s.check(e.Template); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", e.Name, err))
			}
		}
	}
	c.problems = problems
	s.current.Store(c)
	s.folder.Set(joined(problems))
	return c, nil
}

// joined returns the problems as an error of one line, without a full stop.
func joined(problems []error) error {
	if len(problems) == 0 {
		return nil
	}
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// check returns the template.Problems of a template that no workspace could be created from here.
func (s *Service) check(t template.Template) error {
	var list template.Problems
	if t.Image != "" && !s.cfg.Images.Allows(t.Image, "") {
		list = append(list, template.Problem{Line: t.Line("image"), Field: "image", Text: fmt.Sprintf("%q is not allowed; the allowed images are: %s", t.Image, s.cfg.Images.String())})
	}
	if size := workspace.SizeNamed(t.Size); !s.cfg.Sizes.Has(size) {
		list = append(list, template.Problem{Line: t.Line("size"), Field: "size", Text: fmt.Sprintf("%q is not offered; the sizes are: %s", t.Size, strings.Join(s.cfg.Sizes.Names(), ", "))})
	}
	if len(list) == 0 {
		return nil
	}
	return list
}

// Problems returns what is wrong with the files of the folder. Only administrators may call it.
func (s *Service) Problems(caller workspace.Caller) []string {
	if !caller.Admin {
		return nil
	}
	var texts []string
	for _, p := range s.current.Load().problems {
		texts = append(texts, p.Error())
	}
	return texts
}

// List returns the templates that the caller may use; for administrators also those that are
// hidden.
func (s *Service) List(ctx context.Context, caller workspace.Caller) ([]Entry, error) {
	c, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	var groups []string
	if slices.ContainsFunc(c.list, func(e Entry) bool { return len(e.Groups) > 0 }) {
		if groups, err = s.cfg.Store.GroupNames(ctx, caller); err != nil {
			return nil, err
		}
	}
	list := make([]Entry, 0, len(c.list))
	for _, e := range c.list {
		if caller.Admin || !e.Hidden && mayUse(e, groups) {
			list = append(list, e)
		}
	}
	return list, nil
}

func mayUse(e Entry, groups []string) bool {
	return len(e.Groups) == 0 || slices.ContainsFunc(e.Groups, func(name string) bool { return slices.Contains(groups, postgres.UsernameKey(name)) })
}

// Find returns a template that the caller may use, or, for administrators, any. CodeNotFound.
func (s *Service) Find(ctx context.Context, caller workspace.Caller, name string) (Entry, error) {
	list, err := s.List(ctx, caller)
	if err != nil {
		return Entry{}, err
	}
	if i := slices.IndexFunc(list, func(e Entry) bool { return e.Name == name }); i >= 0 {
		return list[i], nil
	}
	return Entry{}, workspace.NotFound("template")
}

// Use returns the use of a template with these values of its parameters. CodeNotFound; CodeInvalid
// for a value that is refused, which is a *template.ValueError or an *environ.Error.
func (s *Service) Use(ctx context.Context, caller workspace.Caller, name string, values map[string]string) (workspace.TemplateUse, error) {
	e, err := s.Find(ctx, caller, name)
	if err != nil {
		return workspace.TemplateUse{}, err
	}
	if e.Hidden {
		return workspace.TemplateUse{}, workspace.NotFound("template")
	}
	return s.use(e, values)
}

func (s *Service) use(e Entry, values map[string]string) (workspace.TemplateUse, error) {
	use, err := e.Use(values, s.cfg.DefaultImage)
	var refused *template.ValueError
	var env *environ.Error
	switch {
	case errors.As(err, &refused):
		return use, &workspace.Error{Code: workspace.CodeInvalid, Message: "The parameters are not valid: " + refused.Error() + ".",
			Details: map[string]any{"field": "parameters", "parameter": refused.Name, "reason": refused.Reason}, Err: err}
	case errors.As(err, &env):
		return use, lifecycle.InvalidEnv(err)
	}
	return use, err
}

// Lacked returns the variables that a template requires and that neither it nor a secret of the
// caller sets.
func (s *Service) Lacked(ctx context.Context, caller workspace.Caller, e Entry) ([]string, error) {
	names := slices.DeleteFunc(slices.Clone(e.Project.Secrets), func(name string) bool {
		_, set := e.Env[name]
		return set
	})
	return s.cfg.Store.LackedSecrets(ctx, caller, e.Name, names)
}

// Fill sets what a new workspace gets from its template, where n does not say otherwise.
func Fill(n *postgres.NewWorkspace, use workspace.TemplateUse) {
	given := use.Settings
	n.ImageRef = cmp.Or(n.ImageRef, given.Image)
	n.Size = cmp.Or(n.Size, given.Size)
	if n.StandbyTTL == nil {
		n.StandbyTTL = given.StandbyTTL
	}
	if n.ArchiveTTL == nil {
		n.ArchiveTTL = given.ArchiveTTL
	}
	if n.BackupInterval == nil {
		n.BackupInterval = given.BackupInterval
	}
	n.BackupKeep = cmp.Or(n.BackupKeep, given.BackupKeep)
	if len(given.Env) > 0 {
		env := maps.Clone(given.Env)
		maps.Copy(env, n.Env)
		n.Env = env
	}
	n.Project = n.Project.Over(given.Project)
	n.Template = &use
}

// Copy sets what a new workspace gets from another one of the same owner, where n does not say
// otherwise.
func Copy(n *postgres.NewWorkspace, from workspace.Workspace) {
	n.Description = cmp.Or(n.Description, from.Description)
	n.ImageRef = cmp.Or(n.ImageRef, from.ImageRef)
	n.Size = cmp.Or(n.Size, from.Size)
	if n.StandbyTTL == nil {
		n.StandbyTTL = from.StandbyTTL
	}
	if n.ArchiveTTL == nil {
		n.ArchiveTTL = from.ArchiveTTL
	}
	if n.BackupInterval == nil {
		n.BackupInterval = from.BackupInterval
	}
	n.BackupKeep = cmp.Or(n.BackupKeep, from.BackupKeep)
	n.AwakeWhileWorking = n.AwakeWhileWorking || from.AwakeWhileWorking
	env := maps.Clone(from.Env)
	if env == nil {
		env = n.Env
	} else {
		maps.Copy(env, n.Env)
	}
	n.Env = env
	n.Project = n.Project.Over(from.Project)
	if use := from.Template; use != nil {
		same := *use
		same.Previous = nil
		n.Template = &same
	}
}

// Update is an update of a workspace to the present version of its template.
type Update struct {
	Entry Entry
	// Use is the use after the update; nil: a parameter needs a value first.
	Use    *workspace.TemplateUse
	Change lifecycle.TemplateChange
}

// UpdateOf returns the update that is available for a workspace; ok is false if there is none. It
// uses what was last read, so that pages can ask it often.
func (s *Service) UpdateOf(w workspace.Workspace) (u Update, ok bool) {
	if s == nil || w.Template == nil {
		return Update{}, false
	}
	e := s.current.Load().find(w.Template.Name)
	if e == nil || e.Hidden || e.Version() == w.Template.Version {
		return Update{}, false
	}
	u.Entry = *e
	use, err := s.use(*e, e.Kept(w.Template.Parameters))
	if err != nil {
		return u, true
	}
	u.Use, u.Change = &use, lifecycle.FollowTemplate(w, use.Settings)
	return u, !u.Change.None()
}

// Apply updates the caller's workspace to the present version of its template. The values of
// parameters that are not given stay. The next start uses it. CodeNotFound; CodeInvalid.
func (s *Service) Apply(ctx context.Context, caller workspace.Caller, id workspace.ID, given map[string]string) (workspace.Workspace, error) {
	w, err := s.ofTemplate(ctx, caller, id)
	if err != nil {
		return w, err
	}
	e, err := s.Find(ctx, caller, w.Template.Name)
	if err != nil {
		return w, err
	}
	values := e.Kept(w.Template.Parameters)
	maps.Copy(values, given)
	use, err := s.use(e, values)
	if err != nil {
		return w, err
	}
	return s.cfg.Store.PatchWorkspace(ctx, caller, id, postgres.Patch{Template: &use})
}

// Revert takes back the last update of the caller's workspace, and the next call this one.
// CodeInvalid if there was none.
func (s *Service) Revert(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, err := s.ofTemplate(ctx, caller, id)
	if err != nil {
		return w, err
	}
	if w.Template.Previous == nil {
		return w, workspace.InvalidField("template", "has not been updated in this workspace.")
	}
	return s.cfg.Store.PatchWorkspace(ctx, caller, id, postgres.Patch{Template: w.Template.Previous})
}

func (s *Service) ofTemplate(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, err := s.cfg.Store.Workspace(ctx, caller, id)
	if err == nil && w.Template == nil {
		err = workspace.InvalidField("template", "is missing: the workspace was not created from one.")
	}
	return w, err
}
