package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestChangeEnv(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id)
	page := b.get(path).body
	contains(t, "its page", page, path+"/env", "Change variables")
	lacks(t, "its page", page, "next start")

	for text, want := range map[string]string{
		"A=1\nsecret":     "Line 2: There is no = between a name and a value.",
		"PATH=/bin":       "Line 1: PATH is reserved for codehub.",
		"KEY<<X\nsecret":  "Line 1: No line ends the value of KEY.",
		"A=1\r\nA=2":      "Line 2: A is given twice.",
		"my-token=secret": "Line 1: A name has letters, digits and _ and does not start with a digit.",
	} {
		a := b.htmx(path+"/env", url.Values{"from": {"detail"}, "env": {text}})
		if a.status != http.StatusUnprocessableEntity {
			t.Errorf("%q: %d", text, a.status)
		}
		contains(t, text, a.body, want)
	}
	a := b.htmx(path+"/env", url.Values{"from": {"detail"}, "env": {"TOKEN=s3cret\r\nA=1\r\n"}})
	contains(t, "changed", a.body, "The environment variables of “project” were changed. They take effect at the next start.")
	if d := cmp.Diff(map[string]string{"TOKEN": "s3cret", "A": "1"}, w.row(id).Env); d != "" {
		t.Error(d)
	}
	page = b.get(path).body
	contains(t, "changed", page, "<code>A</code>", "<code>TOKEN</code>", "The workspace is running with other variables or values.")
	lacks(t, "changed", page, "s3cret")
	contains(t, "in Korean", b.get(path, "Accept-Language", "ko").body, "환경 변수")
	contains(t, "the dialog", b.get(path+"/env?from=detail", "HX-Request", "true").body, "A=1\nTOKEN=s3cret\n")
	stranger := w.person("eve")
	for _, address := range []string{path, path + "/env"} {
		lacks(t, "to another user", stranger.get(address).body, "s3cret")
	}
	const key = "-----BEGIN KEY-----\nMIIE=\n\nEND\n"
	b.htmx(path+"/env", url.Values{"from": {"detail"}, "env": {"A=1\r\nKEY<<X\r\n" + strings.ReplaceAll(key, "\n", "\r\n") + "\r\nX\r\n"}})
	if d := cmp.Diff(map[string]string{"KEY": key, "A": "1"}, w.row(id).Env); d != "" {
		t.Error(d)
	}
	contains(t, "the dialog", b.get(path+"/env?from=detail", "HX-Request", "true").body, "A=1\nKEY&lt;&lt;END_\n"+key+"\nEND_\n")
	b.htmx(path+"/env", url.Values{"from": {"detail"}, "env": {""}})
	if env := w.row(id).Env; env != nil {
		t.Errorf("%v", env)
	}
	lacks(t, "removed", b.get(path).body, "next start")
}

// TestTimeZoneOfBrowser: a start and a new workspace keep the zone that the browser sends.
func TestTimeZoneOfBrowser(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id)
	for _, step := range []struct{ action, zone, want string }{
		{"start", "Asia/Seoul", "Asia/Seoul"}, {"start", "", "Asia/Seoul"}, {"restart", "Europe/Berlin", "Europe/Berlin"}, {"start", "Mars/Base", "Europe/Berlin"},
	} {
		b.htmx(path+"/"+step.action, url.Values{"from": {"detail"}, "time_zone": {step.zone}})
		if got := w.row(id).TimeZone; got != step.want {
			t.Errorf("%s with %q: %q, want %q", step.action, step.zone, got, step.want)
		}
	}
	contains(t, "its page", b.get(path).body, "Europe/Berlin")
}
