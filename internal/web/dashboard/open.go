package dashboard

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// openPath is the page that a link to a repository leads to, with the query linkFields, template
// and param.NAME. It shows all values and a button: a link creates nothing.
const openPath = "/new"

var linkFields = []string{"repo", "branch", "folder", "depth", "submodules", "name"}

// maxExisting is how many workspaces on the same repository the page offers.
const maxExisting = 5

// maxRepo is the length of the fields of a repository.
const maxRepo = 2000

func (d *Dashboard) openRepository(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	f, err := d.openForm("new", r, c)
	if err != nil {
		d.refuse(w, r, c, "", err)
		return
	}
	q := r.URL.Query()
	for _, field := range []string{"repo", "branch", "folder", "depth", "name"} {
		f.Value[field] = cut(strings.TrimSpace(q.Get(field)), maxRepo)
	}
	switch q.Get("submodules") {
	case "true", "1", "on":
		f.Value["submodules"] = "on"
	}
	f.Open, f.Page = true, true
	p := f.project()
	if f.Value["repo"] == "" {
		f.Errors = map[string]string{}
	}
	if !p.Empty() && len(f.Errors) == 0 {
		f.Existing, _, err = d.Store.ListWorkspaces(r.Context(), c, postgres.Filter{Repository: &p.Repositories[0], Recent: true, Limit: maxExisting})
		if err != nil {
			d.refuse(w, r, c, "", err)
			return
		}
		f.Badge = d.badgeOf(p.Repositories[0], f.ofTemplate(q))
		if f.Value["name"] == "" {
			if f.Value["name"], err = d.freeName(r.Context(), c, p.Repositories[0].Name()); err != nil {
				d.refuse(w, r, c, "", err)
				return
			}
		}
	}
	d.showForm(w, r, c, http.StatusOK, f)
}

// freeName returns the name, or the first of name-2, name-3 … that no workspace of the caller has.
func (d *Dashboard) freeName(ctx context.Context, c workspace.Caller, name string) (string, error) {
	list, _, err := d.Store.ListWorkspaces(ctx, c, postgres.Filter{Query: name, Limit: postgres.MaxList})
	if err != nil {
		return "", err
	}
	free := name
	for n := 2; slices.ContainsFunc(list, func(w workspace.Workspace) bool { return strings.EqualFold(w.Name, free) }); n++ {
		free = name + "-" + strconv.Itoa(n)
	}
	return free, nil
}

// cut returns at most n bytes of a text, and no invalid ones.
func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// readRepository validates the fields of the repository.
func (f *form) readRepository() *workspace.Project {
	for _, field := range []string{"repo", "branch", "folder", "depth"} {
		f.line(field, maxRepo, false)
	}
	f.Value["submodules"] = f.r.PostFormValue("submodules")
	return f.project()
}

// project is the project of the form's values; nil: none. It records the errors of the fields.
func (f *form) project() *workspace.Project {
	if f.Value["repo"] == "" {
		return nil
	}
	repo := workspace.Repository{URL: f.Value["repo"], Branch: f.Value["branch"], Path: f.Value["folder"], Submodules: f.Value["submodules"] != ""}
	if depth := f.Value["depth"]; depth != "" {
		n, err := strconv.Atoi(depth)
		if err != nil {
			f.fail("depth", "field.depth_bad")
		}
		repo.Depth = n
	}
	p := &workspace.Project{Repositories: []workspace.Repository{repo}}
	switch field, reason := workspace.FieldOf(p.Check()); {
	case field == "" || f.Errors[field] != "":
	case field == "branch":
		f.fail("branch", "field.branch_bad")
	case field == "path":
		f.fail("folder", "field.folder_bad")
	case field == "depth":
		f.fail("depth", "field.depth_bad")
	case reason == "password":
		f.fail("repo", "field.repo_password")
	default:
		f.fail("repo", "field.repo_bad")
	}
	return p
}

// badge is what people paste into a README.
type badge struct{ Link, Markdown string }

// ofTemplate returns the part of a link's query about the template that the form has; empty if it
// names none.
func (f *form) ofTemplate(q url.Values) url.Values {
	out := url.Values{}
	if q.Get("template") == "" || q.Get("template") != f.Value["template"] {
		return out
	}
	out.Set("template", f.Value["template"])
	for _, p := range f.Params {
		if q.Has(p.Field) {
			out.Set(p.Field, f.Value[p.Field])
		}
	}
	return out
}

// badgeOf returns the link that opens a repository, with more in its query, and a badge that leads
// there.
func (d *Dashboard) badgeOf(r workspace.Repository, more url.Values) badge {
	q := url.Values{"repo": {r.URL}}
	maps.Copy(q, more)
	if r.Branch != "" {
		q.Set("branch", r.Branch)
	}
	if r.Submodules {
		q.Set("submodules", "true")
	}
	base := ""
	if d.URL != nil {
		base = strings.TrimRight(d.URL.String(), "/")
	}
	link := base + openPath + "?" + q.Encode()
	return badge{link, "[![Open in codehub](" + base + badgePath + ")](" + link + ")"}
}

const badgePath = "/open-in-codehub.svg"

// badgeImage has no text of the visitor's language: READMEs are for all.
const badgeImage = `<svg xmlns="http://www.w3.org/2000/svg" width="132" height="24" viewBox="0 0 132 24" role="img" aria-label="Open in codehub"><title>Open in codehub</title><rect width="132" height="24" rx="5" fill="#1f2430"/><path d="m14 8-4 4 4 4m4-8 4 4-4 4" fill="none" stroke="#7aa2f7" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round"/><text x="30" y="16" fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" textLength="94">Open in codehub</text></svg>
`

// badgeSVG serves the badge to pages of any site.
func (d *Dashboard) badgeSVG(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "image/svg+xml")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "cross-origin")
	h.Set("Cache-Control", "public, max-age=86400")
	_, _ = w.Write([]byte(badgeImage))
}
