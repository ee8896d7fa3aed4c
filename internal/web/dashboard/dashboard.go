// Package dashboard serves the pages: login and first-user setup, the list of workspaces, each
// workspace's page, API tokens, and the pages that the proxy shows while a workspace is not
// running. Pages are rendered on the server (html/template), updated by one stream of HTML
// fragments per browser (htmx), and work as plain forms without scripts.
//
// The catalogue has all texts; templates/ and static/ are embedded.
package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/bus"
	"codehub/internal/control/admin"
	"codehub/internal/gateway/inbound"
	"codehub/internal/postgres"
	"codehub/internal/running/devcontainers"
	"codehub/internal/running/ports"
	"codehub/internal/running/service"
	"codehub/internal/running/templates"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/storage/store"
	"codehub/internal/users/auth"
	"codehub/internal/users/gitaccess"
	"codehub/internal/users/gitapps"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/secrets"
	"codehub/internal/users/signin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// Restore compares a restored database with Docker and the bucket (*rollback.Service).
type Restore interface {
	RestorePlan(ctx context.Context, caller workspace.Caller, in api.ApplyRestore, page postgres.Page) (api.RestorePlan, error)
	ApplyRestore(ctx context.Context, caller workspace.Caller, in api.ApplyRestore) (api.RestoreResult, error)
}

// Archives is read access to the bucket. Errors wrap store.ErrNotFound or store.ErrUnavailable.
type Archives interface {
	Stat(ctx context.Context, key string) (store.Object, error)
	// Files reads the list of files of an archive of this size, or of a backup. It may also be
	// archive.ErrNoIndex or archive.ErrCorrupted.
	Files(ctx context.Context, key string, size int64) (archive.Files, error)
	// Generation reads the manifest of a backup. It may also be archive.ErrCorrupted.
	Generation(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error)
	// ReserveManifests reserves memory for manifests that a page of the user reads.
	ReserveManifests(user string, size int64) (release func(), ok bool)
}

// Config holds the dependencies and settings of the pages. All fields are required unless their
// comment says optional.
type Config struct {
	Store  *postgres.DB
	Auth   *auth.Auth
	Events *bus.Hub
	Logs   service.Logs
	// Usage is optional; without it no page shows what workspaces use.
	Usage Usage
	// Setups is optional; without it no page shows the setup of workspaces.
	Setups Setups
	// Dotfiles is optional; without it no page applies them again.
	Dotfiles Dotfiles
	Log      *slog.Logger

	service.Settings
	// MaxRunning is the running limit of a user, 0 for none.
	MaxRunning int
	// SignIn logs users in with identity providers; optional.
	SignIn  *signin.Service
	Secrets *secrets.Service
	Git     *gitaccess.Service
	// GitApps connects users with OAuth2 apps of Git providers; optional.
	GitApps *gitapps.Service
	// GitIdentities are the authors of commits and the SSH keys of workspaces.
	GitIdentities *gitidentity.Service
	// Ports lists and shares ports; optional, without it the pages show none.
	Ports *ports.Service
	// Templates are those that workspaces are created from; optional, without it there are none.
	Templates *templates.Service
	// Devcontainers are the files by which repositories describe their environment; optional, without
	// it no page shows them.
	Devcontainers *devcontainers.Service
	// Admin serves the administrators' page; optional, without it that page does not exist.
	Admin *admin.Service
	// PathMode reports that workspaces share the dashboard's origin; administrators see a
	// warning.
	PathMode bool
	// Clients is the folder with the clients for all systems, which /bin/ serves; optional.
	Clients string
	// Sudo reports that users can become root in their workspaces.
	Sudo bool
	// WorkspaceOrigins is where a form may lead besides the dashboard's own origin, as a source
	// of a Content-Security-Policy; optional.
	WorkspaceOrigins string
	Archives         Archives
	// Restore compares a restored database with Docker and the bucket; nil if neither can be
	// compared.
	Restore Restore
	// Trouble returns the problem that keeps workspaces from changing; optional. It is
	// "backend" (Docker is not responding), "hold" (another database was in use last), "wall"
	// (network isolation failed, so nothing starts), "disk" (the disk is almost full: no starts
	// or restores), "data_disk" (the disk of the data folder is full), "bucket" (no archiving or
	// restoring), or empty.
	Trouble func() string
	// MissingImage returns the error of the default image or that of the IDE, if one is missing;
	// optional.
	MissingImage func() string
	// Unsaved returns how many files the open IDEs of a workspace have not saved, as far as
	// they have reported it; optional.
	Unsaved func(workspace.ID) int
	// Builds are the images that the server makes; nil: none.
	Builds *imagebuild.Builder
	// FormWithin is how long a form may take to arrive; 0 is 30 s.
	FormWithin time.Duration
	// OpenBodies reads the forms of requests without a session; nil: one of its own.
	OpenBodies *inbound.OpenBodies
	// Now returns the time; optional.
	Now func() time.Time
	// MissingText is called for a text that a language lacks; optional, without it that is
	// logged as an error.
	MissingText func(language, key string)
}

// Dashboard serves the pages.
type Dashboard struct {
	Config
	pages  map[string]*pageSet // by language code
	guard  *http.CrossOriginProtection
	assets *assets
	policy string // Content-Security-Policy
	clientsOnce
	// followed counts the logs that pages follow, by user.
	followed perUser
	// reading counts the logs that are read for pages, by user.
	reading perUser
	// browsing counts the archives that are read for pages, by user.
	browsing perUser
	// watching counts the workspaces whose ports pages watch, by user.
	watching perUser
}

// New returns a Dashboard. It panics if an embedded template cannot be parsed.
func New(c Config) *Dashboard {
	if c.FormWithin <= 0 {
		c.FormWithin = formWithin
	}
	if c.OpenBodies == nil {
		c.OpenBodies = &inbound.OpenBodies{}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.MissingText == nil {
		c.MissingText = func(language, key string) { c.Log.Error("text missing", "language", language, "key", key) }
	}
	d := &Dashboard{Config: c, assets: embeddedAssets(), policy: policyOf(c.WorkspaceOrigins), guard: http.NewCrossOriginProtection()}
	if c.URL != nil {
		if err := d.guard.AddTrustedOrigin(c.URL.Scheme + "://" + c.URL.Host); err != nil {
			c.Log.Warn("the server's own address is not an origin; only same-origin requests are accepted", "url", c.URL.String(), "err", err)
		}
	}
	d.guard.SetDenyHandler(http.HandlerFunc(d.refuseCrossOrigin))
	d.pages = parsePages(d.assets, c.Sudo, runtimeName(c.StorageBackend), c.MissingText)
	return d
}

// Routes registers every page by add, as that of an http.ServeMux, and a page for unknown paths. A GET never changes
// anything; changes are POSTs, which are refused from other origins.
func (d *Dashboard) Routes(add func(pattern string, h func(http.ResponseWriter, *http.Request))) {
	guard := func(pattern string, h http.HandlerFunc) {
		guarded := inbound.AnswerEarly(d.guard.Handler(h))
		add(pattern, func(w http.ResponseWriter, r *http.Request) {
			accesslog.SetRoute(r.Context(), pattern)
			guarded.ServeHTTP(w, r)
		})
	}
	// handle registers a page that needs no session.
	handle := func(pattern string, h http.HandlerFunc) { guard(pattern, limitBody(d.openBody, h, d.message)) }
	// loggedIn registers a page that redirects to the login page without a session.
	loggedIn := func(pattern string, h callerHandler) { guard(pattern, d.loggedIn(h)) }

	handle("/", d.noPage)
	handle("GET /assets/{path...}", d.assets.serve)
	handle("GET /login", d.loginPage)
	handle("POST /login", d.login)
	handle("GET /passkey", d.passkeyPage)
	handle("POST /passkey", d.finishPasskey)
	handle("POST /passkey/options", d.loginOptions)
	handle("POST /passkey/recover", d.useRecoveryCode)
	loggedIn("GET /logout", d.logoutPage)
	handle("POST /logout", d.logout)
	handle("GET /setup", d.setupPage)
	handle("POST /setup", d.setup)
	handle("GET "+invitationPath, d.invitationPage)
	handle("POST "+invitationPath, d.invitation)
	d.signInRoutes(handle, loggedIn)
	handle("POST /settings/theme", d.setTheme)
	handle("POST /settings/language", d.setLanguage)

	loggedIn("GET /{$}", d.list)
	loggedIn("GET /computer", d.computer)
	handle("GET /bin/{file}", d.bin)
	handle("GET /dashboard/events", d.events)
	loggedIn("GET /workspaces/new", d.dialog("new"))
	loggedIn("POST /workspaces", d.create)
	loggedIn("GET "+openPath, d.openRepository)
	handle("GET "+badgePath, d.badgeSVG)
	loggedIn("GET /workspaces/{id}", d.detail)
	loggedIn("GET /workspaces/{id}/logs", d.logs)
	loggedIn("GET /workspaces/{id}/terminal", d.terminal)
	loggedIn("GET /workspaces/{id}/usage", d.usage)
	loggedIn("GET /workspaces/{id}/setup", d.setupState)
	loggedIn("POST /workspaces/{id}/setup", d.retrySetup)
	loggedIn("POST /workspaces/{id}/dotfiles", d.applyDotfiles)
	loggedIn("GET /workspaces/{id}/devcontainer", d.devcontainerPage)
	loggedIn("POST /workspaces/{id}/devcontainer", d.useDevcontainer)
	loggedIn("GET /workspaces/{id}/devcontainer/build", d.devcontainerBuildState)
	loggedIn("GET /workspaces/{id}/limit", d.limitState)
	loggedIn("GET /workspaces/{id}/wait", d.wait)
	d.changeRoutes(loggedIn)
	loggedIn("POST /workspaces/{id}/edit", d.patch("edit", "edit", (*form).details))
	loggedIn("POST /workspaces/{id}/image", d.patch("image", "image", (*form).newImage))
	loggedIn("POST /workspaces/{id}/size", d.patch("size", "size", (*form).sizePatch))
	loggedIn("POST /workspaces/{id}/env", d.patch("env", "env", (*form).environment))
	loggedIn("GET /workspaces/{id}/duplicate", d.duplicate)
	loggedIn("GET /workspaces/{id}/update-template", d.dialog("update-template"))
	loggedIn("POST /workspaces/{id}/update-template", d.updateTemplate)
	loggedIn("POST /workspaces/{id}/revert-template", func(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
		d.carryOut(w, r, c, d.revertTemplate)
	})
	loggedIn("POST /workspaces/{id}/timeouts", d.patch("timeouts", "edit", (*form).timeouts))
	loggedIn("POST /workspaces/{id}/memo", d.memo)
	loggedIn("POST /workspaces/{id}/keep-awake", d.keepAwake)
	loggedIn("POST /workspaces/{id}/stay", d.stay)
	loggedIn("POST /workspaces/{id}/stop", d.stop)
	loggedIn("GET /workspaces/{id}/download", d.download)
	loggedIn("GET /workspaces/{id}/archive/files", d.archiveFiles)
	loggedIn("GET /workspaces/{id}/archive/file", d.archiveFile)
	loggedIn("GET /workspaces/{id}/backups", d.backups)
	loggedIn("POST /workspaces/{id}/backup", d.requestBackup)
	loggedIn("GET /workspaces/{id}/backups/{backup}/files", d.archiveFiles)
	loggedIn("GET /workspaces/{id}/backups/{backup}/file", d.archiveFile)
	loggedIn("GET /workspaces/{id}/backups/{backup}/changes", d.backupChanges)
	loggedIn("GET /workspaces/{id}/backups/{backup}/restore", d.backupDialog("restore"))
	loggedIn("POST /workspaces/{id}/backups/{backup}/restore", d.restoreBackup)
	loggedIn("GET /workspaces/{id}/backups/{backup}/fork", d.backupDialog("fork"))
	loggedIn("POST /workspaces/{id}/backups/{backup}/fork", d.fork)
	loggedIn("POST /workspaces/{id}/recover-archive", d.recoverArchive)
	loggedIn("POST /workspaces/{id}/start-empty", d.startEmpty)
	loggedIn("POST /workspaces/{id}/share-port", d.sharePort)
	loggedIn("POST /workspaces/{id}/unshare-port", d.unsharePort)

	loggedIn("GET /workspaces/{id}/shares", d.shares)
	loggedIn("POST /workspaces/{id}/share", d.share)
	loggedIn("POST /workspaces/{id}/unshare", d.unshare)
	loggedIn("POST /workspaces/{id}/hand-over", d.answerHandOver)
	loggedIn("GET /shared", d.shared)
	loggedIn("GET /shared/{id}", d.sharedPage)
	loggedIn("POST /shared/{id}/leave", d.leaveShared)

	loggedIn("GET /settings/account", d.account)
	loggedIn("GET /settings/account/password", d.dialog("change-password"))
	loggedIn("POST /settings/account/password", d.changePassword)
	loggedIn("GET /settings/passkeys/new", d.dialog("passkey"))
	loggedIn("POST /settings/passkeys", d.beginPasskey)
	loggedIn("GET /settings/passkeys/register", d.newPasskeyPage)
	loggedIn("POST /settings/passkeys/register", d.addPasskey)
	loggedIn("POST /settings/passkeys/options", d.passkeyOptions)
	loggedIn("GET /settings/passkeys/codes", d.dialog("passkey-codes"))
	loggedIn("POST /settings/passkeys/codes", d.newRecoveryCodes)
	loggedIn("GET /settings/passkeys/{passkey}/rename", d.dialog("passkey-rename"))
	loggedIn("POST /settings/passkeys/{passkey}/rename", d.renamePasskey)
	loggedIn("GET /settings/passkeys/{passkey}/remove", d.dialog("passkey-remove"))
	loggedIn("POST /settings/passkeys/{passkey}/remove", d.removePasskey)
	loggedIn("GET /settings/keys/new", d.dialog("ssh-key"))
	loggedIn("POST /settings/keys", d.addKey)
	loggedIn("POST /settings/keys/{key}/remove", d.removeKey)
	loggedIn("GET /settings/git/new", d.gitDialog)
	loggedIn("POST /settings/git", d.connectGit)
	loggedIn("POST /settings/git/{connection}/disconnect", d.disconnectGit)
	d.gitAppRoutes(loggedIn)
	loggedIn("GET /settings/dotfiles", d.dialog("dotfiles"))
	loggedIn("POST /settings/dotfiles", d.setDotfiles)
	loggedIn("POST /settings/dotfiles/remove", d.removeDotfiles)
	loggedIn("GET /settings/git-identity", d.gitIdentityDialog(gitIdentityEdit))
	loggedIn("POST /settings/git-identity", d.setGitIdentity)
	loggedIn("GET /settings/git-identity/key", d.gitIdentityDialog(gitIdentityKey))
	loggedIn("POST /settings/git-identity/key", d.newGitKey)
	loggedIn("POST /settings/sessions/end-others", d.endOtherSessions)
	loggedIn("POST /settings/sessions/{session}/end", d.endSession)

	loggedIn("GET /cli-login", d.browserLoginPage)
	loggedIn("POST /cli-login", d.allowBrowserLogin)
	loggedIn("GET /device", d.devicePage)
	loggedIn("POST /device", d.answerDevice)

	loggedIn("GET /settings/secrets", d.secretsPage)
	loggedIn("GET /settings/secrets/new", d.secretDialog(secretNew))
	loggedIn("POST /settings/secrets", d.changeSecret(secretNew))
	loggedIn("GET /settings/secrets/{secret}/edit", d.secretDialog(secretEdit))
	loggedIn("POST /settings/secrets/{secret}/edit", d.changeSecret(secretEdit))
	loggedIn("GET /settings/secrets/{secret}/delete", d.secretDialog(secretDelete))
	loggedIn("POST /settings/secrets/{secret}/delete", d.changeSecret(secretDelete))
	loggedIn("GET /groups/{group}/secrets/new", d.secretDialog(secretNew))
	loggedIn("POST /groups/{group}/secrets", d.changeSecret(secretNew))

	loggedIn("GET /settings/tokens", d.tokens)
	loggedIn("GET /settings/tokens/new", d.dialog("token"))
	loggedIn("POST /settings/tokens", d.createToken)
	loggedIn("GET /settings/tokens/{token}/revoke", d.dialog("revoke"))
	loggedIn("POST /settings/tokens/{token}/revoke", d.revokeToken)

	// admin registers a page for administrators alone.
	admin := func(pattern string, h callerHandler) { loggedIn(pattern, d.admin(h)) }
	admin("GET /admin", d.adminPage)
	admin("GET /admin/restore", d.restorePage)
	admin("POST /admin/restore", d.takeOver)
	admin("POST /admin/nodes/{node}/dead", d.confirmDeadNode)
	admin("POST /admin/images/{image}/retry", d.retryImage)
	admin("GET /admin/people/new", d.userDialog("person-new"))
	admin("POST /admin/people", d.addPerson)
	admin("GET /admin/people/import", d.userDialog("person-import"))
	admin("POST /admin/people/import", d.importPeople)
	admin("GET /admin/people/{person}/invite", d.userDialog("person-invite"))
	admin("POST /admin/people/{person}/invite", d.invitePerson)
	admin("GET /admin/workspaces", d.allWorkspaces)
	admin("GET /admin/workspaces/{id}", d.anyWorkspace)
	admin("GET /admin/workspaces/{id}/actions", d.anyActions)
	admin("POST /admin/workspaces/{id}/logs", d.anyLogs)
	for _, name := range anyForms {
		admin("GET /admin/workspaces/{id}/"+name, d.anyDialog(name))
		admin("POST /admin/workspaces/{id}/"+name, d.administer(name))
	}
	admin("GET /admin/audit", d.auditPage)
	admin("GET /admin/settings", d.settingsPage)
	loggedIn("GET /admin/templates", d.templatesOnly(d.templatesPage))
	loggedIn("GET /admin/new-template", d.templatesOnly(d.newTemplate))
	loggedIn("POST /admin/templates", d.templatesOnly(d.saveTemplate))
	loggedIn("GET /admin/templates/{template}", d.templatesOnly(d.templatePage))
	loggedIn("POST /admin/templates/{template}", d.templatesOnly(d.saveTemplate))
	loggedIn("POST /admin/templates/{template}/restore", d.templatesOnly(d.restoreTemplate))
	loggedIn("POST /admin/templates/{template}/delete", d.templatesOnly(d.deleteTemplate))
	admin("GET /admin/banner", d.bannerDialog)
	admin("POST /admin/banner", d.setBanner)
	loggedIn("GET /notices", d.inbox)
	loggedIn("POST /notices/{notice}/dismiss", d.dismissNotice)
	loggedIn("GET /groups", d.groupsOnly(d.groupsPage))
	loggedIn("GET /groups/new", d.groupDialog(groupNew))
	loggedIn("POST /groups", d.changeGroup(groupNew))
	loggedIn("GET /groups/{group}", d.groupsOnly(d.groupPage))
	for _, name := range []string{groupEdit, groupDelete, groupMember} {
		loggedIn("GET /groups/{group}/"+strings.TrimPrefix(name, "group-"), d.groupDialog(name))
		loggedIn("POST /groups/{group}/"+strings.TrimPrefix(name, "group-"), d.changeGroup(name))
	}
	loggedIn("POST /groups/{group}/members/{person}/remove", d.groupsOnly(d.removeMember))
	admin("GET /admin/people/{person}/delete", d.userDialog("person-delete"))
	admin("POST /admin/people/{person}/delete", d.deletePerson)
	admin("GET /admin/people/{person}/passkeys", d.userDialog("person-passkeys"))
	admin("POST /admin/people/{person}/passkeys", d.removePasskeys)
	for _, name := range []string{"limit", "quota", "password", "make-admin", "take-admin", "disable", "enable"} {
		admin("GET /admin/people/{person}/"+name, d.userDialog("person-"+name))
		admin("POST /admin/people/{person}/"+name, d.changeUser("person-"+name))
	}
}
