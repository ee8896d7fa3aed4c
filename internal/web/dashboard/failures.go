package dashboard

import (
	"context"
	"errors"
	"net/http"

	"codehub/internal/workspace"
)

// statusOf returns the HTTP status of a page that reports err.
func statusOf(err error) int {
	switch workspace.CodeOf(err) {
	case workspace.CodeInvalid, workspace.CodeCookieConflict:
		return http.StatusBadRequest
	case workspace.CodeUnauthenticated, workspace.CodeBadCredentials:
		return http.StatusUnauthorized
	case workspace.CodeForbidden, workspace.CodeSuspended, workspace.CodeImageNotAllowed:
		return http.StatusForbidden
	case workspace.CodeNotFound, workspace.CodeArchiveNotFound:
		return http.StatusNotFound
	case workspace.CodeGone:
		return http.StatusGone
	case workspace.CodeLockedOut, workspace.CodeTooManyAttempts, workspace.CodeLimitExceeded:
		return http.StatusTooManyRequests
	case workspace.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case workspace.CodeUnavailable:
		return http.StatusServiceUnavailable
	case "":
		return http.StatusInternalServerError
	}
	return http.StatusConflict
}

// messageOf returns the key of the text message.<key> that reports err.
func messageOf(err error) string {
	if e := (*workspace.Error)(nil); errors.As(err, &e) && e.Message == workspace.MsgDatabase {
		return "database"
	}
	switch code := workspace.CodeOf(err); code {
	case workspace.CodeForbidden, workspace.CodeNotFound, workspace.CodeGone, workspace.CodeUnavailable, workspace.CodeCookieConflict:
		return string(code)
	}
	return "internal"
}

// logFailure logs errors that are the server's own fault.
func (d *Dashboard) logFailure(r *http.Request, err error) {
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
	case workspace.CodeOf(err) == "", workspace.CodeOf(err) == workspace.CodeUnavailable:
		d.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
}

// fail responds with a page that reports err.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	d.logFailure(r, err)
	d.message(w, r, statusOf(err), messageOf(err))
}

// notice is a page with one message, the texts message.<Key>.title and .body.
type notice struct {
	Key    string
	Status int
	Again  string // address for another try; empty for none
}

func (d *Dashboard) message(w http.ResponseWriter, r *http.Request, status int, key string) {
	if isHTMX(r) {
		l := d.set(r).lang
		d.fragments(w, r, status, part{"toast-oob", &toast{Text: l.T("message."+key+".title") + " " + l.T("message."+key+".body"), Error: true}})
		return
	}
	n := notice{Key: key, Status: status}
	if (status >= 500 || key == string(workspace.CodeCookieConflict)) && r.Method == http.MethodGet {
		n.Again = localPath(r.URL.RequestURI())
	}
	p := d.newPage(r, nil, "message."+key+".title", n)
	p.Plain = true
	d.render(w, r, status, "message", p)
}

// refuse responds to a change that was not made: with the workspaces to stop if the limit is
// reached, else with a message on the current page.
func (d *Dashboard) refuse(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID, err error) {
	var e *workspace.Error
	if id != "" && errors.As(err, &e) && e.Code == workspace.CodeLimitExceeded {
		d.refuseLimit(w, r, c, id, e)
		return
	}
	d.logFailure(r, err)
	l := d.set(r).lang
	text := l.T("err.internal")
	if errors.As(err, &e) {
		if text = e.Message; e.Code == workspace.CodeImageNotAllowed {
			text = imageRefused(l, "err.image_not_allowed", allowedOf(e))
		} else if e.Code == workspace.CodeQuotaExceeded && inBytes(e) {
			text = quotaProblem(l, e)
		} else if l.Has("err." + string(e.Code)) {
			text = l.T("err." + string(e.Code))
		}
	}
	d.refuseWith(w, r, c, id, err, text)
}

// refuseWith is refuse with a text for err.
func (d *Dashboard) refuseWith(w http.ResponseWriter, r *http.Request, c workspace.Caller, id workspace.ID, err error, text string) {
	t := &toast{Text: text, Error: true}
	if !isHTMX(r) {
		p := d.newPage(r, &c, "message.refused.title", struct {
			Text, Back string
		}{text, backTo(fromOf(r), id)})
		d.render(w, r, statusOf(err), "refused", p)
		return
	}
	// The page may have been out of date: redraw it along with the message.
	parts := []part{{"close-dialog", nil}, {"toast-oob", t}}
	if fresh, err := d.redraw(r, c, fromOf(r), id); err == nil && r.Method == http.MethodPost {
		parts = append(fresh, parts...)
	}
	d.fragments(w, r, statusOf(err), parts...)
}

// CookieConflict is the page for a browser that sent several session cookies.
func (d *Dashboard) CookieConflict(w http.ResponseWriter, r *http.Request) {
	d.message(w, r, http.StatusBadRequest, string(workspace.CodeCookieConflict))
}

// noPage responds to unknown paths.
func (d *Dashboard) noPage(w http.ResponseWriter, r *http.Request) {
	d.message(w, r, http.StatusNotFound, "no_page")
}
