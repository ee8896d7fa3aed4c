// Package httpapi is codehub's HTTP API (docs/api.md): the table of routes, the table
// from errors to statuses, strict JSON, and the event stream. api/openapi.json
// describes it, and a test compares the two.
package httpapi

import (
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/arrivals/rollback"
	"codehub/internal/bus"
	"codehub/internal/control/admin"
	"codehub/internal/gateway/inbound"
	"codehub/internal/postgres"
	"codehub/internal/running/attach"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/dotfiles"
	"codehub/internal/running/ports"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/secrets"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Config configures New.
type Config struct {
	service.Settings // a KeepAwakeMax of 0 is 24 h
	Archives         Archives

	Store *postgres.DB
	Admin *admin.Service
	// Restore serves /admin/restore; nil: this server has no Docker or bucket to compare with.
	Restore *rollback.Service
	Auth    *auth.Auth
	Hub     *bus.Hub
	Logs    service.Logs
	Ports   *ports.Service
	Secrets *secrets.Service
	Git     *gitaccess.Service
	// Dotfiles applies them to running workspaces.
	Dotfiles *dotfiles.Service
	// GitIdentities are the authors of commits and the SSH keys of workspaces.
	GitIdentities *gitidentity.Service
	// Templates are those that workspaces are created from.
	Templates *templates.Service
	// Devcontainers are the files by which repositories describe their environment.
	Devcontainers *devcontainers.Service
	Attach        *attach.Attacher
	Gate          Gate
	Log           *slog.Logger

	// LastUse returns the last activity of a workspace that this server has seen and may
	// not have flushed yet; optional.
	LastUse func(workspace.ID) (at time.Time, kind string, ok bool)

	// Heartbeat is the pause between heartbeats of an event stream; 0 is 30 s.
	Heartbeat time.Duration
	// WriteWithin bounds the time in which the reader of a stream accepts one piece, after
	// which it is disconnected; 0 is 30 s.
	WriteWithin time.Duration
	// ReadWithin is how long a request's body, or a piece of an archive from
	// the bucket, may take to arrive; 0 is 30 s.
	ReadWithin time.Duration
	// OpenBodies reads the bodies of requests without a session; nil: one of its own.
	OpenBodies *inbound.OpenBodies
	// CheckEvery is how often it is checked that the caller of a response that lasts may still
	// have it; 0 is 3 s.
	CheckEvery time.Duration
}

// Prefix is the path of the API; New's handler serves everything below it.
const Prefix = "/api/v1"

// server has the handlers.
type server struct {
	cfg     Config
	base    string // CODEHUB_URL without a trailing slash
	origins *http.CrossOriginProtection
	log     *slog.Logger

	following, reading, downloading perUser
}

// handler serves one route. id is the caller; the zero Identity on open routes.
type handler func(w http.ResponseWriter, r *http.Request, id auth.Identity) error

type route struct {
	method, path string
	needs        workspace.Scope // of an API token; open: no credential at all
	handle       handler
	query        []string // the parameters that it knows
}

// open is the need of routes without a caller.
const open workspace.Scope = "open"

// workspacePath and sharedPath begin the paths whose {id} is a workspace.
const (
	workspacePath = "/workspaces/{id}"
	sharedPath    = "/shared/{id}"
)

// on returns the workspace that a request concerns; empty: no single one.
func (rt route) on(r *http.Request) workspace.ID {
	if strings.HasPrefix(rt.path, workspacePath) || strings.HasPrefix(rt.path, sharedPath) {
		return workspace.ID(r.PathValue("id"))
	}
	return ""
}

// pageParams are the parameters of a list.
var pageParams = []string{"limit", "cursor"}

// restoreParams are the parameters, each a list, that choose workspaces of a takeover.
var restoreParams = []string{"only", "keep_database"}

// routes is the whole API.
func (s *server) routes() []route {
	const read, workspaces, admin = workspace.ScopeRead, workspace.ScopeWorkspaces, workspace.ScopeAdmin
	return []route{
		{"GET", "/openapi.json", open, s.openapi, nil},

		{"POST", "/login", open, takes(s, s.login), nil},
		{"POST", "/login/device", open, takes(s, s.beginDevice), nil},
		{"POST", "/login/token", open, takes(s, s.redeemLogin), nil},
		{"POST", "/logout", admin, s.logout, nil},
		{"GET", "/session", read, s.session, nil},
		{"GET", "/sessions", admin, s.listSessions, pageParams},
		{"DELETE", "/sessions", admin, s.endOtherSessions, nil},
		{"DELETE", "/sessions/{id}", admin, deletes(s.cfg.Auth.EndSession), nil},
		{"GET", "/users/me", read, s.me, nil},
		{"POST", "/users/me/password", admin, takes(s, s.changePassword), nil},
		{"GET", "/identities", admin, s.listIdentities, nil},
		{"POST", "/identities/{id}/unlink", admin, takes(s, s.unlinkIdentity), nil},
		// Passkeys are added and removed in the dashboard alone: a token is no second factor.
		{"GET", "/passkeys", admin, s.listPasskeys, nil},
		{"PATCH", "/passkeys/{id}", admin, takes(s, s.renamePasskey), nil},

		{"GET", "/admin/status", admin, s.adminStatus, nil},
		{"GET", "/admin/settings", admin, s.settings, nil},
		{"GET", "/admin/orphans", admin, lists(s.cfg.Admin.Orphans), pageParams},
		{"POST", "/admin/nodes/{name}/dead", admin, ofPath("name", s.cfg.Admin.ConfirmDeadNode), nil},
		{"POST", "/admin/images/{name}/retry", admin, ofPath("name", s.cfg.Admin.RetryImage), nil},
		{"GET", "/admin/restore", admin, s.restorePlan, slices.Concat(restoreParams, pageParams)},
		{"POST", "/admin/restore", admin, takes(s, s.applyRestore), nil},
		{"GET", "/admin/move", admin, s.moveSource, nil},
		{"GET", "/admin/move/users/{id}", admin, s.userToMove, nil},
		{"GET", "/admin/move/workspaces", admin, s.listToMove, pageParams},
		{"GET", "/admin/move/workspaces/{id}", admin, s.getToMove, nil},
		{"DELETE", "/admin/move/workspaces/{id}", admin, s.deleteMoved, []string{"version"}},
		{"GET", "/admin/move/workspaces/{id}/record", admin, s.readToMove, nil},
		{"GET", "/admin/move/workspaces/{id}/archive", admin, s.fetchToMove, []string{"version"}},
		{"POST", "/admin/move/workspaces/{id}/archive", admin, s.archiveToMove, nil},
		{"GET", "/users", admin, s.listAccounts, slices.Concat([]string{"q"}, pageParams)},
		{"POST", "/users", admin, creates(s, s.cfg.Admin.CreateAccount), nil},
		{"POST", "/users/import", admin, creates(s, s.cfg.Admin.ImportAccounts), nil},
		{"POST", "/users/{id}/invitation", admin, ofPath("id", s.cfg.Admin.InviteAccount), nil},
		{"PATCH", "/users/{id}", admin, takes(s, s.patchAccount), nil},
		{"DELETE", "/users/{id}", admin, s.deleteAccount, []string{"workspaces", "to"}},
		{"DELETE", "/users/{id}/passkeys", admin, ofPath("id", s.cfg.Store.RemovePasskeys), nil},

		{"GET", "/groups", read, lists(s.cfg.Admin.Groups), pageParams},
		{"POST", "/groups", admin, creates(s, s.cfg.Admin.CreateGroup), nil},
		{"GET", "/groups/{id}", read, ofPath("id", s.cfg.Store.Group), nil},
		{"PATCH", "/groups/{id}", admin, changes(s, s.cfg.Admin.PatchGroup), nil},
		{"DELETE", "/groups/{id}", admin, deletes(s.cfg.Store.DeleteGroup), nil},
		{"GET", "/groups/{id}/members", admin, s.listMembers, pageParams},
		{"POST", "/groups/{id}/members", admin, changes(s, s.cfg.Admin.SetMember), nil},
		{"DELETE", "/groups/{id}/members/{user}", admin, s.removeMember, nil},

		{"GET", "/groups/{id}/secrets", read, ofPath("id", s.cfg.Secrets.ListGroup), nil},
		{"POST", "/groups/{id}/secrets", admin, takes(s, s.createGroupSecret), nil},

		{"GET", "/admin/workspaces", admin, s.listAllWorkspaces, adminListParams},
		{"GET", "/admin/workspaces/{id}", admin, s.getAnyWorkspace, nil},
		{"PATCH", "/admin/workspaces/{id}", admin, takes(s, s.patchAnyWorkspace), nil},
		{"DELETE", "/admin/workspaces/{id}", admin, s.deleteAnyWorkspace, []string{"message"}},
		{"POST", "/admin/workspaces/{id}/undelete", admin, s.administer(postgres.DoUndelete), nil},
		{"POST", "/admin/workspaces/{id}/stop", admin, s.administer(postgres.DoStop), nil},
		{"POST", "/admin/workspaces/{id}/archive", admin, s.administer(postgres.DoArchive), nil},
		{"POST", "/admin/workspaces/{id}/cancel", admin, s.administer(postgres.DoCancel), nil},
		{"POST", "/admin/workspaces/{id}/message", admin, s.administer(postgres.DoMessage), nil},
		{"POST", "/admin/workspaces/{id}/recover", admin, mayTake(s, s.recoverAnyWorkspace), nil},
		{"POST", "/admin/workspaces/{id}/hand-over", admin, takes(s, s.handOver), nil},
		{"DELETE", "/admin/workspaces/{id}/hand-over", admin, s.withdrawHandOver, nil},
		{"POST", "/admin/workspaces/{id}/size", admin, takes(s, s.sizeAnyWorkspace), nil},
		{"GET", "/admin/workspaces/{id}/archives", admin, s.listAnyArchives, pageParams},
		{"GET", "/admin/workspaces/{id}/backups", admin, s.listAnyBackups, pageParams},
		{"POST", "/admin/workspaces/{id}/backups", admin, mayTake(s, s.requestAnyBackup), nil},
		{"POST", "/admin/workspaces/{id}/restore", admin, takes(s, s.restoreAnyBackup), nil},
		{"GET", "/admin/workspaces/{id}/logs", admin, s.anyLogs, []string{"follow", "tail"}},
		{"GET", "/admin/workspaces/{id}/usage", admin, s.anyUsage, usageParams},
		{"GET", "/admin/usage", admin, s.allUsage, usageParams},
		{"GET", "/audit", admin, s.listAudit, slices.Concat(auditParams, pageParams)},
		{"GET", "/audit/export", admin, s.exportAudit, auditParams},
		{"GET", "/banner", read, s.getBanner, nil},
		{"PUT", "/banner", admin, takes(s, s.setBanner), nil},
		{"GET", "/notices", read, s.listNotices, nil},
		{"DELETE", "/notices/{id}", workspaces, deletes(s.cfg.Store.DismissNotice), nil},

		{"GET", "/tokens", admin, s.listTokens, pageParams},
		{"POST", "/tokens", admin, takes(s, s.createToken), nil},
		{"DELETE", "/tokens/{id}", admin, deletes(s.cfg.Auth.DeleteToken), nil},

		{"GET", "/keys", admin, s.listKeys, pageParams},
		{"POST", "/keys", admin, takes(s, s.addKey), nil},
		{"DELETE", "/keys/{id}", admin, deletes(s.cfg.Store.DeleteSSHKey), nil},
		{"GET", "/ssh", read, s.sshServer, nil},

		{"GET", "/secrets", read, s.listSecrets, nil},
		{"POST", "/secrets", admin, creates(s, s.cfg.Secrets.Create), nil},
		{"PATCH", "/secrets/{id}", admin, changes(s, s.cfg.Secrets.Update), nil},
		{"DELETE", "/secrets/{id}", admin, deletes(s.cfg.Secrets.Delete), nil},

		{"GET", "/git-connections", read, s.listGitConnections, nil},
		{"POST", "/git-connections", admin, creates(s, s.cfg.Git.Connect), nil},
		{"DELETE", "/git-connections/{id}", admin, s.disconnectGit, nil},
		{"GET", "/git-credential", read, s.gitCredential, []string{"host", "rejected"}}, // for programs in a workspace
		{"GET", "/user/dotfiles", read, s.getDotfiles, nil},
		{"PUT", "/user/dotfiles", admin, takes(s, s.setDotfiles), nil},
		{"DELETE", "/user/dotfiles", admin, s.removeDotfiles, nil},
		{"POST", "/workspaces/{id}/dotfiles", workspaces, s.setup(s.cfg.Dotfiles.Apply), nil},
		{"GET", "/user/git-identity", read, s.gitIdentity, nil},
		{"PUT", "/user/git-identity", admin, takes(s, s.setGitIdentity), nil},
		{"POST", "/user/git-identity/key", admin, s.newGitKey, nil},

		{"GET", "/sizes", read, s.listSizes, nil},
		{"GET", "/templates", read, s.listTemplates, nil},
		{"GET", "/templates/{name}", read, s.getTemplate, nil},
		{"PUT", "/templates/{name}", admin, takes(s, s.saveTemplate), nil},
		{"DELETE", "/templates/{name}", admin, s.deleteTemplate, nil},
		{"GET", "/workspaces", read, s.listWorkspaces, []string{"q", "phase", "deleted", "limit", "cursor"}},
		{"POST", "/workspaces", workspaces, takes(s, s.createWorkspace), nil},
		{"GET", "/workspaces/{id}", read, s.getWorkspace, nil},
		{"PATCH", "/workspaces/{id}", workspaces, takes(s, s.patchWorkspace), nil},
		{"DELETE", "/workspaces/{id}", workspaces, s.deleteWorkspace, []string{"queue"}},
		{"POST", "/workspaces/{id}/undelete", workspaces, s.intent(http.StatusOK, s.cfg.Store.UndeleteWorkspace), nil},
		{"POST", "/workspaces/{id}/recover", workspaces, mayTake(s, s.recoverWorkspace), nil},
		{"POST", "/workspaces/{id}/cancel", workspaces, s.intent(http.StatusAccepted, s.cfg.Store.RequestCancel), nil},
		{"POST", "/workspaces/{id}/stay", workspaces, s.intent(http.StatusOK, s.cfg.Store.Stay), nil},
		{"POST", "/workspaces/{id}/update-image", workspaces, s.intent(http.StatusOK, s.cfg.Store.UpdateImage), nil},
		{"GET", "/workspaces/{id}/template", read, s.workspaceTemplate, nil},
		{"POST", "/workspaces/{id}/update-template", workspaces, mayTake(s, s.updateTemplate), nil},
		{"POST", "/workspaces/{id}/revert-template", workspaces, s.revertTemplate, nil},
		{"POST", "/workspaces/{id}/restart", workspaces, s.intent(http.StatusAccepted, s.cfg.Store.Restart), nil},
		{"POST", "/workspaces/{id}/stop", workspaces, s.stopWorkspace, []string{"force"}},
		{"GET", "/workspaces/{id}/archive", workspaces, s.downloadArchive, []string{"archive_op_id"}},
		{"GET", "/workspaces/{id}/archive/files", workspaces, s.listArchiveFiles, []string{"path", "archive_op_id", "limit", "cursor"}},
		{"GET", "/workspaces/{id}/archive/file", workspaces, s.downloadArchiveFile, []string{"path", "archive_op_id"}},
		{"GET", "/workspaces/{id}/archives", read, s.listArchives, pageParams},
		{"GET", "/workspaces/{id}/backups", read, s.listBackups, pageParams},
		{"POST", "/workspaces/{id}/backups", workspaces, mayTake(s, s.requestBackup), nil},
		{"GET", "/workspaces/{id}/backups/versions", workspaces, s.fileVersions, []string{"path", "cursor"}},
		{"GET", "/workspaces/{id}/backups/{backup}", read, s.getBackup, nil},
		{"GET", "/workspaces/{id}/backups/{backup}/files", workspaces, s.listArchiveFiles, []string{"path", "limit", "cursor"}},
		{"GET", "/workspaces/{id}/backups/{backup}/file", workspaces, s.downloadArchiveFile, []string{"path"}},
		{"GET", "/workspaces/{id}/backups/{backup}/changes", workspaces, s.backupChanges, []string{"since"}},
		{"GET", "/workspaces/{id}/backups/{backup}/tar", workspaces, s.downloadBackupTar, []string{"path"}},
		{"POST", "/workspaces/{id}/backups/{backup}/put", workspaces, takes(s, s.putBack), nil},
		{"POST", "/workspaces/{id}/restore", workspaces, takes(s, s.restoreBackup), nil},
		{"POST", "/workspaces/{id}/fork", workspaces, takes(s, s.fork), nil},
		{"GET", "/workspaces/{id}/logs", read, s.workspaceLogs, []string{"follow", "tail"}},
		{"GET", "/workspaces/{id}/ports", read, s.listPorts, nil},
		{"PUT", "/workspaces/{id}/ports/{port}/share", workspaces, takes(s, s.sharePort), nil},
		{"DELETE", "/workspaces/{id}/ports/{port}/share", workspaces, s.unsharePort, nil},
		{"GET", "/workspaces/{id}/ports/{port}/connect", workspaces, s.connectPort, nil},
		{"GET", "/workspaces/{id}/shares", read, s.listShares, nil},
		{"POST", "/workspaces/{id}/shares", admin, takes(s, s.share), nil}, // a share outlives the token
		{"DELETE", "/workspaces/{id}/shares/{share}", workspaces, s.unshare, nil},
		{"GET", "/workspaces/{id}/hand-over", read, s.getHandOver, nil},
		{"POST", "/workspaces/{id}/hand-over", admin, takes(s, s.answerHandOver), nil}, // the workspace goes to another user
		{"GET", "/shared", read, s.listShared, nil},
		{"GET", "/shared/{id}", read, s.getShared, nil},
		{"DELETE", "/shared/{id}", workspaces, s.leave, nil},
		{"GET", "/workspaces/{id}/usage", read, s.usage, nil},
		{"GET", "/workspaces/{id}/setup", read, s.setup(s.cfg.Attach.Setup), nil},
		{"POST", "/workspaces/{id}/setup/retry", workspaces, s.setup(s.cfg.Attach.RetrySetup), nil},
		{"POST", "/workspaces/{id}/git-signature", workspaces, takes(s, s.signForGit), nil}, // from inside alone
		{"GET", "/workspaces/{id}/devcontainer", read, s.devcontainers, nil},
		{"POST", "/workspaces/{id}/devcontainer", workspaces, mayTake(s, s.useDevcontainer), nil},
		{"DELETE", "/workspaces/{id}/devcontainer", workspaces, s.stopDevcontainer, nil},
		{"GET", "/workspaces/{id}/devcontainer/build", read, s.devcontainerBuild, nil},
		{"DELETE", "/workspaces/{id}/devcontainer/build", workspaces, s.cancelDevcontainerBuild, nil},
		{"GET", "/workspaces/{id}/exec", workspaces, s.exec, nil},

		{"GET", "/workspaces/{id}/ssh", workspaces, s.connectSSH, nil},

		{"GET", "/events", read, s.events, nil},
	}
}

// New returns the handler of everything under /api/. It refuses cross-origin requests
// and sets the API's headers; Outer, around it, adds request ids, the access log and the
// recovery from panics.
func New(cfg Config) http.Handler {
	if cfg.KeepAwakeMax <= 0 {
		cfg.KeepAwakeMax = 24 * time.Hour
	}
	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = 30 * time.Second
	}
	if cfg.WriteWithin <= 0 {
		cfg.WriteWithin = 30 * time.Second
	}
	if cfg.ReadWithin <= 0 {
		cfg.ReadWithin = 30 * time.Second
	}
	if cfg.CheckEvery <= 0 {
		cfg.CheckEvery = 3 * time.Second
	}
	if cfg.OpenBodies == nil {
		cfg.OpenBodies = &inbound.OpenBodies{}
	}
	s := &server{cfg: cfg, base: strings.TrimRight(cfg.URL.String(), "/"), origins: CrossOrigin(cfg.URL), log: cfg.Log}
	mux := http.NewServeMux()
	// Each path has one pattern for all methods: with patterns for some methods,
	// /users/me and /users/{id} would conflict.
	paths := map[string]map[string]http.Handler{}
	for _, rt := range s.routes() {
		if paths[rt.path] == nil {
			paths[rt.path] = map[string]http.Handler{}
		}
		paths[rt.path][rt.method] = s.serve(rt)
		if rt.method == http.MethodGet {
			paths[rt.path][http.MethodHead] = paths[rt.path][rt.method]
		}
	}
	for path, methods := range paths {
		mux.Handle(Prefix+path, s.byMethod(path, methods))
	}
	mux.Handle("/", s.serve(route{path: "/", needs: open, handle: func(http.ResponseWriter, *http.Request, auth.Identity) error {
		return workspace.Errorf(workspace.CodeNotFound, "There is no such endpoint. The API is described at %s/openapi.json.", Prefix)
	}}))
	return mux
}

// byMethod calls the handler of the request's method, and answers other methods with a
// 405 that lists the allowed ones.
func (s *server) byMethod(path string, methods map[string]http.Handler) http.Handler {
	allowed := strings.Join(slices.Sorted(maps.Keys(methods)), ", ")
	other := s.serve(route{path: path, needs: open, handle: methodNotAllowed(allowed)})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, ok := methods[r.Method]
		if !ok {
			h = other
		}
		h.ServeHTTP(w, r)
	})
}

// CrossOrigin returns the check that refuses requests of another origin's page.
func CrossOrigin(base *url.URL) *http.CrossOriginProtection {
	p := http.NewCrossOriginProtection()
	if base != nil && base.Host != "" {
		// This cannot fail: the origin has only a scheme and a host.
		_ = p.AddTrustedOrigin(base.Scheme + "://" + base.Host)
	}
	return p
}

// serve wraps the handler of a route in the checks that all routes share.
func (s *server) serve(rt route) http.Handler {
	name := strings.TrimSpace(rt.method + " " + Prefix + rt.path)
	return inbound.AnswerEarly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		accesslog.SetRoute(r.Context(), name)
		headers(w.Header())
		w.Header().Set(api.VersionHeader, s.cfg.Version)
		if err := s.handle(w, r, rt); err != nil {
			s.fail(w, r, err)
		}
	}))
}

func (s *server) handle(w http.ResponseWriter, r *http.Request, rt route) error {
	if err := s.sameOrigin(r); err != nil {
		return err
	}
	if err := checkInside(r, rt); err != nil {
		return err
	}
	var id auth.Identity
	if rt.needs != open {
		var err error
		if id, err = s.cfg.Auth.IdentifyFor(r, true, rt.needs, rt.on(r)); err != nil {
			return err
		}
		accesslog.SetUser(r.Context(), id.Caller.UserID)
	}
	if rt.method != "" {
		if err := checkParams(r.URL.Query(), rt.query); err != nil {
			return err
		}
		if slices.Contains(rt.query, "cursor") {
			most := maxPage
			if slices.Contains(rt.query, "path") { // a list of files
				most = maxArchiveFiles
			}
			if _, err := parsePage(r.URL.Query(), most); err != nil {
				return err
			}
		}
		if strings.Contains(rt.path, workspacePath) && !workspace.ValidID(r.PathValue("id")) {
			return workspace.NotFound("workspace")
		}
		if rt.needs == open {
			if err := s.readOpen(w, r); err != nil {
				return err
			}
		}
	}
	return rt.handle(w, r, id)
}

// insideRoutes are the routes for programs inside a workspace, which have no credential. They
// are about the workspace itself and its owner's Git access.
var insideRoutes = map[string]bool{
	"GET /session":               true,
	"GET /workspaces/{id}":       true,
	"GET /workspaces/{id}/usage": true,
	"GET /workspaces/{id}/ports": true,
	"GET /workspaces/{id}/setup": true,
	"POST /workspaces/{id}/stay": true,
	"POST /workspaces/{id}/stop": true,
	"GET /git-credential":        true,

	"GET /workspaces/{id}/backups":          true,
	"POST /workspaces/{id}/backups":         true,
	"GET /workspaces/{id}/backups/{backup}": true,

	"POST /workspaces/{id}/setup/retry": true,

	"POST /workspaces/{id}/git-signature": true,
	"POST /workspaces/{id}/dotfiles":      true,
}

// checkInside refuses what a program inside a workspace may not do without a login.
func checkInside(r *http.Request, rt route) error {
	id, inside := auth.Inside(r.Context())
	if !inside {
		return nil
	}
	accesslog.SetWorkspace(r.Context(), string(id), 0)
	if on := rt.on(r); !insideRoutes[rt.method+" "+rt.path] || on != "" && on != id {
		return workspace.Errorf(workspace.CodeForbidden, "Without a login, a workspace can only show, stop and back up itself, list its ports, stay awake and ask for Git credentials. Log in for all else.")
	}
	return nil
}

// sameOrigin refuses requests that a page of another origin makes a browser send, and
// requests of any origin in the mode no-cors, which need no preflight.
func (s *server) sameOrigin(r *http.Request) error {
	if s.origins.Check(r) != nil {
		return crossOrigin()
	}
	safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
	if !safe && r.Header.Get("Sec-Fetch-Mode") == "no-cors" {
		return workspace.Errorf(codeCrossOrigin, "Requests with Sec-Fetch-Mode: no-cors cannot change anything.")
	}
	return nil
}

// asChange is sameOrigin for a GET that does more than read, such as add to the audit log.
func (s *server) asChange(r *http.Request) error {
	as := r.Clone(r.Context())
	as.Method = http.MethodPost
	if s.origins.Check(as) != nil {
		return crossOrigin()
	}
	return nil
}

func crossOrigin() error {
	return workspace.Errorf(codeCrossOrigin, "The request came from another site and was refused.")
}

func headers(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
}

func methodNotAllowed(allow string) handler {
	return func(w http.ResponseWriter, r *http.Request, _ auth.Identity) error {
		w.Header().Set("Allow", allow)
		return workspace.Errorf(codeMethodNotAllowed, "This endpoint accepts %s.", allow)
	}
}

func (s *server) openapi(w http.ResponseWriter, _ *http.Request, _ auth.Identity) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(api.OpenAPI)
	return err
}
