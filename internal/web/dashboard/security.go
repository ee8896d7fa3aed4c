package dashboard

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// policyOf returns a policy that lets a page load only from its own origin, run no inline script,
// be framed by no page, and send forms to its own origin and those of workspaces.
func policyOf(workspaces string) string {
	forms := "'self'"
	if workspaces != "" {
		forms += " " + workspaces
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; " +
		"connect-src 'self'; form-action " + forms + "; base-uri 'none'; frame-ancestors 'none'"
}

const (
	// maxBody bounds the size of a form of a user who is logged in.
	maxBody = 256 << 10
	// formWithin is the default of Config.FormWithin: a slow form cannot hold a connection
	// open, even without a login.
	formWithin = 30 * time.Second
)

// secureHeaders sets the headers of a page. Browsers apply form-action to redirects as well,
// and a login leads back to a workspace, so its sources include the origins of workspaces.
func (d *Dashboard) secureHeaders(h http.Header) {
	h.Set("Content-Security-Policy", d.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	if h.Get("Referrer-Policy") == "" {
		h.Set("Referrer-Policy", "same-origin")
	}
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=()")
	h.Set("Cache-Control", "no-store")
}

// bodyReader reads a request's body within its bounds; the error is an *http.MaxBytesError if
// it is too large.
type bodyReader func(w http.ResponseWriter, r *http.Request) ([]byte, error)

// openBody reads forms of pages that need no session.
func (d *Dashboard) openBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return d.OpenBodies.Read(w, r, d.FormWithin)
}

// ownBody reads forms of users who are logged in.
func (d *Dashboard) ownBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return inbound.ReadBody(w, r, maxBody, d.FormWithin)
}

// limitBody reads the form before h runs. h does not run for a form that was not read in full,
// nor for a body that is no form: an absent field would count as an empty one. refuse answers
// then, with the key of a message.
func limitBody(read bodyReader, h http.HandlerFunc, refuse func(w http.ResponseWriter, r *http.Request, status int, key string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, 0) // FormValue would read it
			h(w, r)
			return
		}
		body, err := read(w, r)
		rest := bytes.NewReader(body) // ParseForm leaves a body that is no form
		if err == nil {
			r.Body = io.NopCloser(rest)
			err = r.ParseForm()
		}
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			refuse(w, r, http.StatusRequestEntityTooLarge, "large_form")
		case err != nil:
			refuse(w, r, http.StatusBadRequest, "broken_form")
		case rest.Len() > 0:
			refuse(w, r, http.StatusUnsupportedMediaType, "broken_form")
		default:
			h(w, r)
		}
	}
}

// callerHandler serves a request whose caller is known.
type callerHandler func(w http.ResponseWriter, r *http.Request, c workspace.Caller)

// loggedIn resolves the caller, or redirects to the login page, which leads back to a page. It
// reads the form of a caller alone.
func (d *Dashboard) loggedIn(h callerHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		who, err := d.Auth.Identify(r, false)
		switch {
		case err == nil:
			accesslog.SetUser(r.Context(), who.Caller.UserID)
			limitBody(d.ownBody, func(w http.ResponseWriter, r *http.Request) { h(w, r, who.Caller) }, d.message)(w, r)
		case workspace.CodeOf(err) == workspace.CodeUnauthenticated:
			next := "/"
			if r.Method == http.MethodGet && !isHTMX(r) {
				next = r.URL.RequestURI()
			}
			d.redirect(w, r, loginPath(next))
		default:
			d.fail(w, r, err)
		}
	}
}

func loginPath(next string) string {
	if next = localPath(next); next == "/" {
		return "/login"
	}
	return "/login?next=" + url.QueryEscape(next)
}

// isHTMX reports whether htmx made the request and expects fragments.
func isHTMX(r *http.Request) bool { return r.Header.Get("HX-Request") == "true" }

// redirect sends the browser to a path of this origin, from a page or from htmx.
func (d *Dashboard) redirect(w http.ResponseWriter, r *http.Request, path string) {
	d.secureHeaders(w.Header())
	path = localRedirect(path)
	if isHTMX(r) {
		w.Header().Set("HX-Redirect", path)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	http.Redirect(w, r, path, http.StatusSeeOther)
}

// localRedirect is localPath that also allows the pages before the session.
func localRedirect(path string) string {
	u, err := url.Parse(path)
	if err == nil && u.Scheme == "" && u.Host == "" && (u.Path == "/login" || u.Path == "/setup" || u.Path == "/passkey" || u.Path == invitationPath) {
		return path
	}
	return localPath(path)
}

func (d *Dashboard) refuseCrossOrigin(w http.ResponseWriter, r *http.Request) {
	d.message(w, r, http.StatusForbidden, "cross_origin")
}
