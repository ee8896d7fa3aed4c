package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"codehub/internal/bus/activity"
	"codehub/internal/gateway/origin"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// IDE describes a workspace to the pages of its IDE and changes it for them. All requests
// come from the workspace's own origin, where the workspace's programs can send them too
// while the user has it open, so it gives nothing away that those must not know, and does
// nothing to any other workspace.
type IDE interface {
	// State returns what the IDE shows, which is encoded as JSON.
	State(r *http.Request, v IDEVisit) any
	// Ask changes the caller's workspace: for AskStay nothing else is needed, AskKeepAwake
	// takes the duration, 0 to end it. It returns a *workspace.Error for users.
	Ask(ctx context.Context, c workspace.Caller, id workspace.ID, what IDERequest, lasting time.Duration) error
	// FileVersions returns the versions of a file in the workspace's backups, and FileText the text of
	// one of them; both are encoded as JSON. Only the owner gets them, and only while no guest may
	// use the workspace. They return a *workspace.Error for users.
	FileVersions(r *http.Request, c workspace.Caller, id workspace.ID, f IDEFile) (any, error)
	FileText(r *http.Request, c workspace.Caller, id workspace.ID, f IDEFile) (any, error)
	// Preference returns what was chosen on the dashboard in this browser, empty if nothing was.
	Preference(r *http.Request, p IDEPreference) string
	// PreferenceCookie returns the cookie by which pages on the workspace's host have the
	// same preference, nil for an unknown value. An empty value removes the cookie.
	PreferenceCookie(p IDEPreference, value string) *http.Cookie
}

// IDEPreference is a choice on the dashboard that the IDE follows. It is also the name of the
// parameter that takes it to the host of a workspace.
type IDEPreference string

// The preferences.
const (
	PreferLanguage IDEPreference = "language" // the code of a language
	PreferTheme    IDEPreference = "theme"    // dark or light; ide.js reads its cookie
)

var idePreferences = []IDEPreference{PreferLanguage, PreferTheme}

// IDERequest is a change that an IDE asks for.
type IDERequest string

// The changes.
const (
	AskStay      IDERequest = "stay"       // reset the idle timer
	AskKeepAwake IDERequest = "keep-awake" // for a duration
	AskStop      IDERequest = "stop"
)

// IDEFile is a file in the home of a workspace, in the request of an IDE.
type IDEFile struct {
	Path   string `json:"path"`   // absolute
	Backup string `json:"backup"` // of a version: the id of the backup
	Cursor string `json:"cursor"` // of a page of versions; empty: the newest
}

// IDEAccess says whether the browser may still use the workspace.
type IDEAccess int

// The kinds of access.
const (
	IDEAllowed   IDEAccess = iota
	IDELoggedOut           // no session
	IDEEnded               // the workspace is another user's, or does not exist
)

// IDEVisit is a question about a workspace by its IDE.
type IDEVisit struct {
	Access IDEAccess
	ID     workspace.ID
	Guest  bool // shared with the user, who can change nothing by Ask
	// The workspace, and its last use that this server knows, which may be later than that
	// in the database; only for IDEAllowed.
	Workspace workspace.Workspace
	LastUse   time.Time
}

// Paths of an IDE's requests, below origin.OwnPrefix.
const (
	idePathScript    = "ide.js"
	idePathState     = "state"
	idePathDashboard = "dashboard"
	idePathLogout    = "logout"
	idePathVersions  = "versions"
	idePathVersion   = "version"
)

// maxIDEBody bounds the body of a request of an IDE.
const maxIDEBody = 16 << 10

// ideScript is loaded by the IDE's page. It shows why the connection has ended.
//
//go:embed ide.js
var ideScript []byte

// ideScriptTag names this version of the script.
var ideScriptTag = fmt.Sprintf(`"%x"`, sha256.Sum256(ideScript))

// ideBody is the body of a request of an IDE.
type ideBody struct {
	Seconds int    `json:"seconds"` // of AskKeepAwake
	Page    string `json:"page"`    // of a state: the page that asks, and how many of its files are not saved
	Unsaved int    `json:"unsaved"`
	// Used is what happened in the page since its last report: presence, typing or output; else
	// empty.
	Used activity.Kind `json:"used"`
	IDEFile
}

// isOwnPath reports whether codehub answers a path of a workspace, not the container.
func isOwnPath(path string) bool { return strings.HasPrefix(path+"/", origin.OwnPrefix) }

// serveIDE answers codehub's own paths on a workspace's host, or in path mode below the
// workspace's path. It relays nothing and wakes nothing, and only what a page reports counts
// as use.
func (p *Proxy) serveIDE(w http.ResponseWriter, r *http.Request, v visit) {
	name := strings.TrimPrefix(v.path, origin.OwnPrefix)
	switch {
	case p.ide == nil || v.host.Port != 0:
		p.noPage(w, r, v)
	case name == idePathScript && isRead(r) && !isServiceWorker(r.Header):
		serveScript(w, r)
	case name == idePathDashboard && v.navigation:
		redirect(w, p.layout.Main()+"/workspaces/"+string(v.id))
	case name == idePathLogout && v.navigation:
		redirect(w, p.layout.Main()+"/logout")
	case name == idePathState && (r.Method == http.MethodGet && !v.navigation || r.Method == http.MethodPost):
		p.serveState(w, r, v)
	case r.Method == http.MethodPost && (name == string(AskStay) || name == string(AskKeepAwake) || name == string(AskStop)):
		p.answer(w, r, v, func(c workspace.Caller, body ideBody) (any, error) {
			return map[string]any{}, p.ide.Ask(r.Context(), c, v.id, IDERequest(name), time.Duration(body.Seconds)*time.Second)
		})
	case r.Method == http.MethodPost && name == idePathVersions:
		p.answer(w, r, v, func(c workspace.Caller, body ideBody) (any, error) {
			return p.ide.FileVersions(r, c, v.id, body.IDEFile)
		})
	case r.Method == http.MethodPost && name == idePathVersion:
		p.answer(w, r, v, func(c workspace.Caller, body ideBody) (any, error) { return p.ide.FileText(r, c, v.id, body.IDEFile) })
	default:
		p.noPage(w, r, v)
	}
}

// ideLanguage is the cookie by which VS Code knows the language of its page. VS Code's own
// setting, "Configure Display Language", comes first.
const ideLanguage = "vscode.nls.locale"

// addLanguage asks for the IDE's page in the language of the dashboard. An IDE other than
// VS Code ignores the cookie.
func (x *exchange) addLanguage(out, in *http.Request) {
	if x.visit.path != "/" || x.proxy.ide == nil || x.visit.host.Port != 0 || x.visit.app.port != 0 {
		return
	}
	code := x.proxy.ide.Preference(in, PreferLanguage)
	if code == "" {
		return
	}
	if _, err := in.Cookie(ideLanguage); err == nil {
		return
	}
	// A header of its own would make a server that reads only the first one lose the others.
	lines := slices.Clone(out.Header["Cookie"])
	if own := ideLanguage + "=" + code; len(lines) == 0 {
		lines = []string{own}
	} else {
		lines[len(lines)-1] += "; " + own
	}
	out.Header["Cookie"] = lines
}

// preferenceKnown is the suffix of the cookie, on the main origin, with the preference that the
// host of a workspace knows from this browser.
const preferenceKnown = "_host"

// changedPreferences returns the preferences of the dashboard that the host of a workspace does
// not know, and the cookies that remember that it was told.
func (p *Proxy) changedPreferences(r *http.Request, id workspace.ID) (changed url.Values, known []*http.Cookie) {
	if p.ide == nil {
		return nil, nil
	}
	changed = url.Values{}
	for _, name := range idePreferences {
		value := p.ide.Preference(r, name)
		cookie := p.ide.PreferenceCookie(name, value)
		if cookie == nil {
			continue
		}
		cookie.Name += preferenceKnown
		cookie.Path, cookie.HttpOnly = pathPrefix+string(id), true
		told := ""
		if c, err := r.Cookie(cookie.Name); err == nil {
			told = c.Value
		}
		if told != value {
			changed.Set(string(name), value)
			known = append(known, cookie)
		}
	}
	return changed, known
}

func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

func serveScript(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/javascript; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "private, max-age=3600") // a page may run the script of the version before
	h.Set("ETag", ideScriptTag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(ideScript))
}

// authenticateIDE authenticates a request of an IDE, and refuses one of another origin.
func (p *Proxy) authenticateIDE(r *http.Request, v *visit) error {
	var err error
	var allowed bool
	if v.host.ID != "" {
		allowed = p.origins.allowsOn(v.host, r, false, false)
		v.caller, err = p.visitors.AuthenticateWorkspace(r, v.host)
	} else {
		allowed = p.origins.allows(r, false, false)
		v.caller, err = p.auth.Authenticate(r, false)
	}
	if !allowed {
		return workspace.Errorf(workspace.CodeForbidden, "Other sites cannot send requests to this workspace.")
	}
	if err == nil {
		accesslog.SetUser(r.Context(), v.caller.UserID)
	}
	return err
}

// serveState tells the IDE about its workspace. A session that has ended is 401.
func (p *Proxy) serveState(w http.ResponseWriter, r *http.Request, v visit) {
	err := p.authenticateIDE(r, &v)
	var body ideBody
	if err == nil {
		var ok bool
		if body, ok = readIDEBody(w, r); !ok {
			return
		}
	}
	shown := IDEVisit{ID: v.id}
	if err == nil {
		var ws workspace.Workspace
		if ws, err = p.store.EnterableWorkspace(r.Context(), v.caller, v.id); err == nil {
			shown.Workspace, shown.Guest = ws, !v.caller.Uses(ws.OwnerID, ws.ID)
		}
	}
	status := http.StatusOK
	switch code := workspace.CodeOf(err); {
	case err == nil:
		switch {
		case lifecycle.OpeningOf(shown.Workspace) != lifecycle.OpenNow:
			p.unsaved.Close(v.id)
		case r.Method == http.MethodPost:
			p.reported(v, body)
		}
		if last, ok := p.activity.Last(v.id); ok {
			shown.LastUse = last.At
		}
	case code == workspace.CodeUnauthenticated:
		status, shown.Access = http.StatusUnauthorized, IDELoggedOut
	case code == workspace.CodeForbidden:
		status, shown.Access = http.StatusForbidden, IDEEnded
	case code == workspace.CodeNotFound:
		status, shown.Access = http.StatusNotFound, IDEEnded
	default:
		p.serverError(w, r, v, "read the state for an IDE failed", err)
		return
	}
	answerIDE(w, status, p.ide.State(r, shown))
}

// reported takes what the page of a running IDE reports.
func (p *Proxy) reported(v visit, body ideBody) {
	if body.Page != "" {
		p.unsaved.Report(v.id, body.Page, body.Unsaved)
	}
	switch body.Used {
	case activity.Presence, activity.Typing, activity.Output:
		mark := p.activity.Mark(v.id)
		mark.Touch(body.Used)
		mark.Release()
	}
}

// answer answers a request of an IDE with what do returns.
func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, v visit, do func(c workspace.Caller, body ideBody) (any, error)) {
	var out any
	err := p.authenticateIDE(r, &v)
	if err == nil {
		body, ok := readIDEBody(w, r)
		if !ok {
			return
		}
		out, err = do(v.caller, body)
	}
	var known *workspace.Error
	switch code := workspace.CodeOf(err); {
	case err == nil:
		answerIDE(w, http.StatusOK, out)
	case !errors.As(err, &known):
		p.serverError(w, r, v, "answer a request of an IDE failed", err)
	case code == workspace.CodeUnauthenticated:
		refuse(w, http.StatusUnauthorized, code, known.Message, nil)
	case code == workspace.CodeForbidden:
		refuse(w, http.StatusForbidden, code, known.Message, nil)
	case code == workspace.CodeNotFound:
		refuse(w, http.StatusNotFound, code, known.Message, nil)
	default:
		refuse(w, http.StatusConflict, code, known.Message, nil)
	}
}

// readIDEBody reads the JSON of a POST. Pages of other origins cannot send this type
// without asking first, which is refused.
func readIDEBody(w http.ResponseWriter, r *http.Request) (body ideBody, ok bool) {
	if r.Method != http.MethodPost {
		return body, true
	}
	if r.Header.Get("Content-Type") != "application/json" || json.NewDecoder(http.MaxBytesReader(w, r.Body, maxIDEBody)).Decode(&body) != nil {
		refuse(w, http.StatusBadRequest, workspace.CodeInvalid, "The request is not valid JSON.", nil)
		return body, false
	}
	return body, true
}

func answerIDE(w http.ResponseWriter, status int, answer any) {
	setOwnHeaders(w, status)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
}
