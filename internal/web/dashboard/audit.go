package dashboard

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// auditView is a page of the audit log.
type auditView struct {
	Entries []auditEntry
	Form    auditForm
	Export  string // address of the export of what the page selects
	Paging  paging
	Now     time.Time
}

// auditForm is the filter of the audit log.
type auditForm struct{ User, Action, Target, Days string }

// Filtered reports whether the page shows only a part of the log.
func (f auditForm) Filtered() bool { return f != auditForm{} }

// Groups are the beginnings of actions, with the texts audit.group.<Group>.
func (auditForm) Groups() []string {
	return []string{"workspace.", "user.", "login", "logout", "session.", "identity.", "token.", "passkey.", "ssh_key.", "port.", "banner.", "audit.", "moves.", "node.", "installation.", "group.", "secret.", "git.", "template."}
}

// Choices are the numbers of days.
func (auditForm) Choices() []string { return []string{"1", "7", "30", "90"} }

// auditEntry is an entry with its details in order.
type auditEntry struct {
	postgres.AuditEntry
	Facts []fact
	To    string // address of what its target is; empty: none
}

type fact struct{ Key, Value string }

// IsWord reports whether the value is as short as an ID, which is not broken over lines.
func (f fact) IsWord() bool { return len(f.Value) <= len("00000000-0000-0000-0000-000000000000") }

func auditEntryOf(e postgres.AuditEntry) auditEntry {
	out := auditEntry{AuditEntry: e}
	for _, k := range slices.Sorted(maps.Keys(e.Details)) {
		v, ok := e.Details[k].(string)
		if !ok {
			b, _ := json.Marshal(e.Details[k]) // it was decoded from JSON
			v = string(b)
		}
		if k != "name" || v != e.TargetName {
			out.Facts = append(out.Facts, fact{k, v})
		}
	}
	if strings.HasPrefix(e.Action, "workspace.") && workspace.ValidID(e.Target) {
		out.To = "/admin/workspaces/" + e.Target
	}
	return out
}

func (d *Dashboard) auditPage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	q := r.URL.Query()
	text := func(name string) string {
		s := strings.TrimSpace(q.Get(name))
		if len(s) > 255 || !utf8.ValidString(s) || strings.ContainsFunc(s, workspace.Unprintable) {
			return ""
		}
		return s
	}
	v := auditView{Form: auditForm{User: text("user"), Action: text("action"), Target: text("target")}, Now: d.Now()}
	f := postgres.AuditFilter{User: v.Form.User, Action: v.Form.Action, Target: v.Form.Target, Page: postgres.Page{Limit: auditShown, Cursor: q.Get("cursor")}}
	export := url.Values{}
	if i := slices.Index(v.Form.Choices(), q.Get("days")); i >= 0 {
		v.Form.Days = q.Get("days")
		f.Since = v.Now.AddDate(0, 0, -[]int{1, 7, 30, 90}[i])
		export.Set("since", f.Since.UTC().Format(time.RFC3339))
	}
	here := url.Values{}
	for name, s := range map[string]string{"user": f.User, "action": f.Action, "target": f.Target} {
		if s != "" {
			export.Set(name, s)
			here.Set(name, s)
		}
	}
	if v.Form.Days != "" {
		here.Set("days", v.Form.Days)
	}
	list, next, err := d.Store.Audit(r.Context(), c, f)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	for _, e := range list {
		v.Entries = append(v.Entries, auditEntryOf(e))
	}
	v.Export = "/api/v1/audit/export?" + export.Encode()
	if next != "" {
		to := maps.Clone(here)
		to.Set("cursor", next)
		v.Paging.Next = "/admin/audit?" + to.Encode()
	}
	if f.Cursor != "" {
		v.Paging.First = "/admin/audit?" + here.Encode()
	}
	p := d.newPage(r, &c, "audit.title", v)
	p.Nav = "admin"
	d.render(w, r, http.StatusOK, "audit", p)
}

// auditShown is the number of entries on a page.
const auditShown = 50

// bannerForm is the form of the banner.
func (d *Dashboard) bannerForm(r *http.Request) (*form, error) {
	b, err := d.Store.Banner(r.Context())
	f := d.form("banner", r, nil)
	f.Action, f.Back, f.Value["message"] = "/admin/banner", "/admin", b.Message
	return f, err
}

func (d *Dashboard) bannerDialog(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.bannerForm(r)
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	d.showForm(w, r, c, http.StatusOK, f)
}

func (d *Dashboard) setBanner(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.bannerForm(r)
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	text := f.message(false)
	if f.bad() {
		d.again(w, r, c, f)
		return
	}
	b, err := d.Store.SetBanner(r.Context(), c, text)
	if err != nil {
		d.refuseUser(w, r, c, err)
		return
	}
	note := "banner"
	if b.Message == "" {
		note = "banner_removed"
	}
	if !isHTMX(r) || asPage(r) {
		d.redirect(w, r, notedAt("/admin", note, ""))
		return
	}
	n := d.noticesFor(r, c)
	n.OOB = true
	d.fragments(w, r, http.StatusOK, part{"told", n}, part{"close-dialog", nil}, part{"toast-oob", &toast{Text: f.lang.T("toast." + note + ".unnamed")}})
}
