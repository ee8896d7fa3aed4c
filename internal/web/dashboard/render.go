package dashboard

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// pageSet is every template in one language.
type pageSet struct {
	lang  *catalogue.Language
	parts *template.Template                   // the fragments
	pages map[string]func() *template.Template // by file: the layout with that page's content
}

// page is the layout's data; Body is the page's own.
type page struct {
	Title   string
	Lang    *catalogue.Language
	Langs   []*catalogue.Language
	Theme   string // light, dark, or empty for the system's
	Path    string // where the theme and language forms return to
	User    *workspace.Caller
	Nav     string
	Stream  string // address of the page's event stream; empty for none
	Warn    bool   // about path mode, for administrators
	Notices notices
	Admin   bool // the user is an administrator
	Groups  bool // the server has groups of users
	Sharing bool // workspaces can be shared
	Plain   bool // no top bar: login, setup, the proxy's pages
	Toast   *toast
	Forms   string   // where a form leads besides the usual places; empty for none
	Refresh *refresh // without scripts; nil for none
	Now     time.Time
	Version string // of the server
	Body    any
}

// parsePages parses the templates in each language, and each page when it is first shown, since
// every page has a copy of all fragments. missing is called for each text that a
// language lacks. With sudo, users can install packages until a workspace stops. runtime is the
// name of what runs the workspaces.
func parsePages(a *assets, sudo bool, runtime string, missing func(language, key string)) map[string]*pageSet {
	root, err := fs.Sub(files, "templates")
	if err != nil {
		panic(err)
	}
	pages, err := fs.Glob(root, "page_*.html")
	if err != nil {
		panic(err)
	}
	out := map[string]*pageSet{}
	for _, l := range catalogue.Languages() {
		l = l.On(runtime).Reporting(missing)
		parts := template.Must(template.New("").Funcs(funcs(l, a, sudo)).ParseFS(root, "part_*.html", "layout.html"))
		// A template that was executed cannot be copied any more.
		set := &pageSet{lang: l, parts: template.Must(parts.Clone()), pages: map[string]func() *template.Template{}}
		for _, file := range pages {
			name := strings.TrimSuffix(strings.TrimPrefix(file, "page_"), ".html")
			set.pages[name] = sync.OnceValue(func() *template.Template {
				return template.Must(template.Must(parts.Clone()).ParseFS(root, file))
			})
		}
		out[l.Code] = set
	}
	return out
}

// runtimeName is what pages call the system that runs the workspaces.
func runtimeName(storage string) string {
	if storage == workspace.StorageKubernetes {
		return "Kubernetes"
	}
	return "Docker"
}

// funcs returns the functions of the templates in one language.
func funcs(l *catalogue.Language, a *assets, sudo bool) template.FuncMap {
	stamp := func(kind string, t time.Time, text string) template.HTML {
		return template.HTML(fmt.Sprintf(`<time datetime="%s" data-%s>%s</time>`,
			t.UTC().Format(time.RFC3339), kind, template.HTMLEscapeString(text)))
	}
	packages := l.T("create.packages")
	if sudo {
		packages = l.T("create.packages_sudo")
	}
	return template.FuncMap{
		"packages": func() string { return packages },

		"t":     l.T,
		"n":     l.N,
		"bytes": l.Bytes,
		"size":  func(s workspace.Size) string { return sizeText(l, s) },
		"count": l.Count,
		"int":   func(n int64) int { return int(n) },
		"left":  l.Left,
		"lasting": func(v any) string {
			if n, ok := v.(int); ok {
				return l.Lasting(time.Duration(n) * time.Second)
			}
			d, _ := v.(time.Duration)
			return l.Lasting(d)
		},
		"took":  l.Took,
		"utc":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"asset": a.url,
		"icon":  icon,
		"ago":   func(t, now time.Time) template.HTML { return stamp("ago", t, l.Ago(t, now)) },
		"for":   func(t, now time.Time) template.HTML { return stamp("for", t, l.For(t, now)) },
		"in":    func(t, now time.Time) template.HTML { return stamp("in", t, l.In(t, now)) },
		"at": func(t time.Time) template.HTML {
			return stamp("at", t, t.UTC().Format("2006-01-02 15:04")+" UTC")
		},
		// day and clock are parts of a time.
		"day":    func(t time.Time) template.HTML { return stamp("day", t, t.UTC().Format(time.DateOnly)) },
		"clock":  func(t time.Time) template.HTML { return stamp("clock", t, t.UTC().Format("15:04")+" UTC") },
		"days":   lifetimes,
		"scopes": scopes,
		"dict":   dict,
		"when":   func(t *time.Time) time.Time { return *t },
		"known":  l.Known,
		"label":  func(field string) string { return l.Known("field.", field) },
		"texts":  func() []workspace.Text { return workspace.Texts },
		"system": l.System, "sentences": l.Sentences,
		// hint is what a user can do while an operation waits in a step; empty for most.
		"hint": func(step string) string {
			if !l.Has("hint." + step) {
				return ""
			}
			return l.T("hint." + step)
		},
		"initial": func(s string) string {
			for _, r := range s {
				return strings.ToUpper(string(r))
			}
			return ""
		},
	}
}

// dict makes a map from alternating keys and values, for templates with several arguments.
func dict(kv ...any) (map[string]any, error) {
	if len(kv)%2 != 0 {
		return nil, errors.New("dict: a key without a value")
	}
	m := make(map[string]any, len(kv)/2)
	for i := 0; i < len(kv); i += 2 {
		k, ok := kv[i].(string)
		if !ok {
			return nil, errors.New("dict: a key that is no string")
		}
		m[k] = kv[i+1]
	}
	return m, nil
}

// set returns the templates in the request's language.
func (d *Dashboard) set(r *http.Request) *pageSet {
	chosen := ""
	if c, err := r.Cookie(languageCookie); err == nil {
		chosen = c.Value
	}
	return d.pages[catalogue.Match(chosen, r).Code]
}

// newPage returns a page with the fields that all pages have. titleKey is the text of its
// title, empty if the caller sets the title.
func (d *Dashboard) newPage(r *http.Request, c *workspace.Caller, titleKey string, body any) page {
	l := d.set(r).lang
	p := page{Lang: l, Langs: catalogue.Languages(), Path: "/", User: c, Body: body, Now: d.Now(), Version: d.Version}
	if titleKey != "" {
		p.Title = l.T(titleKey)
	}
	if r.Method == http.MethodGet {
		p.Path = r.URL.RequestURI()
	}
	if k, err := r.Cookie(themeCookie); err == nil && isTheme(k.Value) {
		p.Theme = k.Value
	}
	p.Warn = d.PathMode && c != nil && c.Admin
	if c != nil {
		p.Notices = d.noticesFor(r, *c)
		p.Admin, p.Groups, p.Sharing = c.Admin && d.Admin != nil, d.Admin != nil, !d.PathMode
		p.Stream = noticesStream
	}
	return p
}

func (d *Dashboard) trouble() string {
	if d.Trouble == nil {
		return ""
	}
	return d.Trouble()
}

// render writes a whole page. It renders before it writes, so that an error can still be
// reported.
func (d *Dashboard) render(w http.ResponseWriter, r *http.Request, status int, name string, p page) {
	var b bytes.Buffer
	if err := d.set(r).pages[name]().ExecuteTemplate(&b, "layout", p); err != nil {
		d.broken(w, r, err)
		return
	}
	policy := d.policy
	if p.Forms != "" {
		policy = policyOf(strings.TrimSpace(d.WorkspaceOrigins + " " + p.Forms))
	}
	d.send(w, status, b.Bytes(), policy)
}

func (d *Dashboard) send(w http.ResponseWriter, status int, html []byte, policy string) {
	d.secureHeaders(w.Header())
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Vary", "Accept-Language, Cookie, HX-Request")
	w.WriteHeader(status)
	_, _ = w.Write(html) // an error means that the browser disconnected
}

// part is a fragment: the template Name with Data.
type part struct {
	Name string
	Data any
}

// fragments writes parts of a page, for htmx.
func (d *Dashboard) fragments(w http.ResponseWriter, r *http.Request, status int, parts ...part) {
	var b bytes.Buffer
	for _, p := range parts {
		if err := d.set(r).parts.ExecuteTemplate(&b, p.Name, p.Data); err != nil {
			d.broken(w, r, err)
			return
		}
	}
	d.send(w, status, b.Bytes(), d.policy)
}

// broken responds when a template fails, which is a bug.
func (d *Dashboard) broken(w http.ResponseWriter, r *http.Request, err error) {
	d.Log.Error("render a page failed", "path", r.URL.Path, "err", err)
	http.Error(w, d.set(r).lang.T("err.internal"), http.StatusInternalServerError)
}
