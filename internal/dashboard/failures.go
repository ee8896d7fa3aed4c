package dashboard

import (
	"context"
	"errors"
	"net/http"

	"codehub/internal/workspace"
)

// statusOf is the status of a page that says err.
func statusOf(err error) int {
	switch workspace.CodeOf(err) {
	case workspace.CodeInvalid:
		return http.StatusBadRequest
	case workspace.CodeUnauthenticated, workspace.CodeBadCredentials:
		return http.StatusUnauthorized
	case workspace.CodeForbidden:
		return http.StatusForbidden
	case workspace.CodeNotFound, workspace.CodeArchiveNotFound:
		return http.StatusNotFound
	case workspace.CodeGone:
		return http.StatusGone
	case workspace.CodeLockedOut, workspace.CodeLimitExceeded:
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

// messageOf is the text message.<key> that a page says err with.
func messageOf(err error) string {
	switch code := workspace.CodeOf(err); code {
	case workspace.CodeForbidden, workspace.CodeNotFound, workspace.CodeGone, workspace.CodeUnavailable:
		return string(code)
	}
	return "internal"
}

// logFailure logs what is the server's own fault, once.
func (d *Dashboard) logFailure(r *http.Request, err error) {
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
	case workspace.CodeOf(err) == "", workspace.CodeOf(err) == workspace.CodeUnavailable:
		d.Log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
}

// fail answers with a page that says err.
func (d *Dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	d.logFailure(r, err)
	d.message(w, r, statusOf(err), messageOf(err))
}

// notice is a page that says one thing, in the texts message.<Key>.title and .body.
type notice struct {
	Key    string
	Status int
	Again  string // address to try again; empty for none
}

func (d *Dashboard) message(w http.ResponseWriter, r *http.Request, status int, key string) {
	if isHTMX(r) {
		l := d.set(r).lang
		d.fragments(w, r, status, part{"toast-oob", &toast{Text: l.T("message."+key+".title") + " " + l.T("message."+key+".body"), Error: true}})
		return
	}
	n := notice{Key: key, Status: status}
	if status >= 500 && r.Method == http.MethodGet {
		n.Again = localPath(r.URL.RequestURI())
	}
	p := d.newPage(r, nil, "message."+key+".title", n)
	p.Plain = true
	d.render(w, r, status, "message", p)
}

// refuse answers a change that was not made: the limit with what to
// stop, everything else with a message where the person is.
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
		if text = e.Message; l.Has("err." + string(e.Code)) {
			text = l.T("err." + string(e.Code))
		}
	}
	t := &toast{Text: text, Error: true}
	if !isHTMX(r) {
		p := d.newPage(r, &c, "message.refused.title", struct {
			Text, Back string
		}{text, backTo(fromOf(r), id)})
		d.render(w, r, statusOf(err), "refused", p)
		return
	}
	// What the page showed may be why: draw it afresh along with the message.
	parts := []part{{"close-dialog", nil}, {"toast-oob", t}}
	if fresh, err := d.redraw(r, c, fromOf(r), id); err == nil && r.Method == http.MethodPost {
		parts = append(fresh, parts...)
	}
	d.fragments(w, r, statusOf(err), parts...)
}

// noPage answers for paths that lead nowhere.
func (d *Dashboard) noPage(w http.ResponseWriter, r *http.Request) {
	d.message(w, r, http.StatusNotFound, "no_page")
}
