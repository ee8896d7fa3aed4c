package httpapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/environ"
	"codehub/internal/workspace/lifecycle"
)

// Sizes of a page of a list.
const (
	defaultPage = postgres.DefaultList
	maxPage     = postgres.MaxList
	maxQuery    = 255 // characters of ?q=
	maxCursor   = 4096
)

func (s *server) listWorkspaces(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	f, err := parseFilter(r.URL.Query())
	if err != nil {
		return err
	}
	list, next, err := s.cfg.Store.ListWorkspaces(r.Context(), id.Caller, f)
	return reply(w, http.StatusOK, api.WorkspaceList{Workspaces: each(list, s.view), NextCursor: next}, err)
}

func parseFilter(q url.Values) (postgres.Filter, error) {
	f := postgres.Filter{Query: q.Get("q"), Phase: workspace.Phase(q.Get("phase"))}
	if !utf8.ValidString(f.Query) || utf8.RuneCountInString(f.Query) > maxQuery || strings.ContainsFunc(f.Query, workspace.Unprintable) {
		return f, fieldError("q", "must be at most 255 characters without control characters.")
	}
	if f.Phase != "" && !slices.Contains(workspace.Phases(), f.Phase) {
		return f, fieldError("phase", "is not a phase.")
	}
	page, _ := parsePage(q, maxPage)
	f.Limit, f.Cursor = page.Limit, page.Cursor
	var err error
	f.Deleted, err = boolParam(q, "deleted")
	return f, err
}

// pageOf is parsePage for the handlers: handle has checked the parameters.
func pageOf(r *http.Request) postgres.Page {
	p, _ := parsePage(r.URL.Query(), maxPage)
	return p
}

// parsePage reads the parameters of a list, of which a page has at most so many entries.
func parsePage(q url.Values, most int) (postgres.Page, error) {
	p := postgres.Page{Limit: defaultPage, Cursor: q.Get("cursor")}
	if len(p.Cursor) > maxCursor {
		return p, fieldError("cursor", "is not one that this call gave out.")
	}
	if v := q.Get("limit"); v != "" {
		var err error
		if p.Limit, err = strconv.Atoi(v); err != nil || p.Limit < 1 || p.Limit > most {
			return p, fieldError("limit", fmt.Sprintf("must be between 1 and %d.", most))
		}
	}
	return p, nil
}

// checkParams refuses unknown query parameters, and parameters given twice that are not
// lists: a mistyped parameter must not be ignored.
func checkParams(q url.Values, known []string) error {
	for name, values := range q {
		if !slices.Contains(known, name) {
			return malformed(boundedText(name), "is unknown.")
		}
		if len(values) > 1 && !slices.Contains(restoreParams, name) {
			return malformed(name, "is given twice.")
		}
	}
	return nil
}

func boolParam(q url.Values, name string) (bool, error) {
	switch q.Get(name) {
	case "", "false", "0":
		return false, nil
	case "true", "1":
		return true, nil
	}
	return false, fieldError(name, "must be true or false.")
}

func (s *server) createWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.CreateWorkspace) error {
	n := postgres.NewWorkspace{
		ImageRef: in.ImageRef, StorageBackend: s.cfg.StorageBackend,
		Desired: workspace.DesiredRunning, StandbyTTL: in.StandbyTTLSeconds, ArchiveTTL: in.ArchiveTTLSeconds,
		BackupInterval: in.BackupIntervalSeconds, BackupKeep: in.BackupKeep,
		Env: in.Env, TimeZone: in.TimeZone, QueueAtLimit: in.QueueAtLimit, Project: service.Project(in.Repositories),
	}
	texts := workspace.Edit{Name: &in.Name, Description: &in.Description, Memo: &in.Memo}
	if err := checkTexts(&texts); err != nil {
		return err
	}
	n.Name, n.Description, n.Memo = *texts.Name, *texts.Description, *texts.Memo
	desired, err := checkDesired(in.DesiredState)
	if err != nil {
		return err
	}
	if desired != nil {
		n.Desired = *desired
	}
	if err := firstError(
		lifecycle.InvalidEnv(environ.Check(in.Env)),
		checkTimeZone(in.TimeZone),
		n.Project.Check(),
		checkTTL("standby_ttl_seconds", in.StandbyTTLSeconds),
		checkTTL("archive_ttl_seconds", in.ArchiveTTLSeconds),
		checkBackups(in.BackupIntervalSeconds, in.BackupKeep),
	); err != nil {
		return err
	}
	if err := s.settle(r, id, in, &n); err != nil {
		return err
	}
	if n.ImageRef == "" {
		n.ImageRef = s.cfg.DefaultImage
	}
	if err := firstError(checkImageRef(n.ImageRef), lifecycle.InvalidEnv(environ.Check(n.Env)), n.Project.Check()); err != nil {
		return err
	}
	ws, err := s.cfg.Store.CreateWorkspace(r.Context(), id.Caller, n)
	if err != nil {
		return err
	}
	w.Header().Set("Location", Prefix+"/workspaces/"+string(ws.ID))
	return s.answer(w, http.StatusCreated, ws, nil)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *server) getWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	if id.Caller.Permits(workspace.ScopeWorkspaces, ws.ID) != nil {
		return writeJSON(w, http.StatusOK, s.view(ws)) // the values of its variables may be secrets
	}
	return s.answerTo(w, id, http.StatusOK, ws, nil)
}

func (s *server) patchWorkspace(w http.ResponseWriter, r *http.Request, id auth.Identity, in api.UpdateWorkspace) error {
	p := postgres.Patch{
		Edit: service.Edit(in), Image: in.ImageRef, Queue: in.Queue,
		StandbyTTL: workspace.Optional[int](in.StandbyTTLSeconds), ArchiveTTL: workspace.Optional[int](in.ArchiveTTLSeconds),
		BackupInterval: workspace.Optional[int](in.BackupIntervalSeconds), BackupKeep: in.BackupKeep,
		KeepAwakeUntil: workspace.Optional[time.Time](in.KeepAwakeUntil), AwakeWhileWorking: in.AwakeWhileWorking, TimeZone: in.TimeZone,
	}
	if in.Size != nil {
		p.Size = new(workspace.SizeNamed(*in.Size))
	}
	if in.Env.Set {
		p.Env = &lifecycle.EnvChange{Replace: in.Env.Value == nil}
		if !p.Env.Replace {
			p.Env.Set = *in.Env.Value
		}
	}
	if err := checkTexts(&p.Edit); err != nil {
		return err
	}
	if in.ImageRef != nil {
		if err := checkImageRef(*in.ImageRef); err != nil {
			return err
		}
	}
	var err error
	if p.Desired, err = checkDesired(in.DesiredState); err != nil {
		return err
	}
	keep := ""
	if in.BackupKeep != nil {
		keep = *in.BackupKeep
	}
	p.FreeSpace, p.QueueAtLimit = in.FreeSpace, in.QueueAtLimit
	if err := firstError(
		checkTTL("standby_ttl_seconds", in.StandbyTTLSeconds.Value),
		checkTTL("archive_ttl_seconds", in.ArchiveTTLSeconds.Value),
		checkBackups(in.BackupIntervalSeconds.Value, keep),
		s.checkKeepAwake(in.KeepAwakeUntil, time.Now()),
		checkTimeZone(in.TimeZone),
	); err != nil {
		return err
	}
	ws, err := s.cfg.Store.PatchWorkspace(r.Context(), id.Caller, pathID(r), p)
	return s.answer(w, http.StatusOK, ws, err)
}

// find reads the workspace of the path.
func (s *server) find(r *http.Request, id auth.Identity) (workspace.Workspace, error) {
	return s.cfg.Store.Workspace(r.Context(), id.Caller, pathID(r))
}

// findEnterable is find for what guests who may use the workspace do as well.
func (s *server) findEnterable(r *http.Request, id auth.Identity) (workspace.Workspace, error) {
	return s.cfg.Store.EnterableWorkspace(r.Context(), id.Caller, pathID(r))
}

// pathID returns the workspace id of the path.
func pathID(r *http.Request) workspace.ID { return workspace.ID(r.PathValue("id")) }

func (s *server) view(ws workspace.Workspace) api.Workspace {
	if s.cfg.LastUse != nil && ws.Phase == workspace.PhaseRunning {
		// This server may have seen activity that is not flushed yet. No unwatched time
		// after that activity is known yet.
		if at, kind, ok := s.cfg.LastUse(ws.ID); ok && (ws.LastAccessAt == nil || at.After(*ws.LastAccessAt)) {
			ws.LastAccessAt, ws.LastAccess, ws.Unwatched = &at, kind, 0
		}
	}
	return service.Server{URL: s.base, Grace: s.cfg.DeleteGrace, TTL: s.cfg.TTL(), Sizes: s.cfg.Sizes, TemplateUpdate: s.templateUpdate}.View(ws)
}

// answerTo is answer without what guests of the workspace do not see of it, if the request comes
// from inside: guests have terminals there.
func (s *server) answerTo(w http.ResponseWriter, id auth.Identity, status int, ws workspace.Workspace, err error) error {
	if !id.Caller.Inside {
		return s.answer(w, status, ws, err)
	}
	ws.Memo = ""
	return reply(w, status, s.view(ws), err)
}

func (s *server) answer(w http.ResponseWriter, status int, ws workspace.Workspace, err error) error {
	v := s.view(ws)
	// Lists and events do not have it: the values may be secrets.
	if v.Env = ws.Env; v.Env == nil {
		v.Env = map[string]string{}
	}
	if ws.Template != nil && v.Template != nil {
		v.Template.Parameters = texts(ws.Template.Parameters)
	}
	return reply(w, status, v, err)
}

func (s *server) templateUpdate(ws workspace.Workspace) bool {
	_, available := s.cfg.Templates.UpdateOf(ws)
	return available
}
