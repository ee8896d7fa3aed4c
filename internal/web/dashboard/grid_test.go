package dashboard

import (
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

// misaligned lists what begins neither where the header does nor, in boxes, where their texts do.
// Two columns begin at one height.
const misaligned = `(function () {
	var out = [], edge = document.querySelector('.home').getBoundingClientRect().left
	var outer = function (e) { return e.getBoundingClientRect().left }
	var inner = function (e) {
		var style = getComputedStyle(e)
		return outer(e) + parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft)
	}
	var check = function (selector, want, at) {
		document.querySelectorAll(selector).forEach(function (e) {
			if (!e.getBoundingClientRect().height || e.matches('.sr') || e.closest('.column-side')) return
			if (Math.abs(at(e) - want) > .5) out.push(e.tagName + (e.id ? '#' + e.id : '') + '.' + e.className + ' "' + e.textContent.trim().slice(0, 20) + '" begins at ' + at(e) + ', not at ' + want)
		})
	}
	check('.page, .banner', edge, inner)
	check('.page > *, .column-main:not(.box) > *, .narrow, .page .card, .page .panel, #main :is(.rows, .table-box):not(.box *)', edge, outer)
	check('.box, .card, .panel, .row, .table tr > :first-child', edge + 21, inner)
	var columns = Array.from(document.querySelectorAll('.column-main, .column-side')).map(function (c) {
		return c.matches('.box') ? c : Array.from(c.querySelectorAll('.box')).find(function (e) { return e.getBoundingClientRect().height })
	})
	var tops = columns.map(function (c) { return c.getBoundingClientRect().top }), titles = columns.map(function (c) { return c.querySelector('h2').getBoundingClientRect().top })
	if (tops[0] !== tops[1] || Math.abs(titles[0] - titles[1]) > .5) out.push('the columns begin at ' + tops + ', their titles at ' + titles)
	return out.slice(0, 12)
})()`

// Every page begins at one line on the left, that of the header.
func TestPagesShareOneGrid(t *testing.T) {
	t.Parallel()
	w := newPortsWorld(t, workspace.VisiblePublic)
	w.dash.Usage = steadyUsage{}
	id := w.add("demo", running)
	w.add("other", standby)
	lost := w.add("lost", volumeLost)
	w.servers()
	w.person("ann")
	theirs := w.AddWorkspace(w.caller("ann"), "theirs").ID
	if _, err := w.DB.Share(t.Context(), w.caller("ann"), theirs, postgres.NewShare{User: "admin", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	group, err := w.DB.CreateGroup(t.Context(), w.caller("admin"), postgres.Group{Name: "Team"})
	if err != nil {
		t.Fatal(err)
	}
	w.Exec(`INSERT INTO banner (message, username) VALUES ('Down at ten.', 'admin')`)
	w.used(id, testTTL.Standby-time.Minute) // about to stop: a banner
	w.Exec(`INSERT INTO workspace_usage (day, workspace_id, owner_user_id, running_seconds, cpu_seconds, memory_seconds, home_bytes, archives_bytes) SELECT current_date, id, owner_user_id, 60, 60, 60, 60, 60 FROM workspaces`)
	b := w.tab()
	b.run(chromedp.EmulateViewport(1440, 900))
	b.logIn()
	own := "/workspaces/" + string(id)
	for _, path := range []string{"/", own, own + "/shares", own + "/edit", "/workspaces/" + string(lost), "/shared", "/shared/" + string(theirs), "/groups", "/groups/" + group.ID,
		"/notices", "/settings/account", "/settings/tokens", "/admin", "/admin/workspaces", "/admin/workspaces/" + string(theirs), "/admin/audit", "/admin/settings", "/admin/restore"} {
		b.visit(path)
		b.until(`document.readyState === 'complete' && !document.querySelector('.htmx-request') && (!document.querySelector('#shares') || document.querySelector('#shares h2'))`)
		for _, s := range value(b, chromedp.Evaluate[[]string](misaligned)) {
			t.Errorf("%s: %s", path, s)
		}
	}
}

// The pages that cannot load base.css have its colors.
func TestPagesShareOnePalette(t *testing.T) {
	t.Parallel()
	color := regexp.MustCompile(`#(?:[0-9a-f]{6}|[0-9a-f]{3})\b`)
	read := func(name string) []string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return color.FindAllString(string(b), -1)
	}
	palette := append(read("static/base.css"), "#fff")
	for _, name := range []string{"static/notice.css", "static/pages.css", "static/icon.svg", "templates/layout.html", "../proxy/ide.js"} {
		for _, c := range read(name) {
			if !slices.Contains(palette, c) {
				t.Errorf("%s has %s, which is not in base.css", name, c)
			}
		}
	}
}
