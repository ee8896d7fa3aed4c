package cli

import (
	"io/fs"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"codehub/api"
)

func TestVariables(t *testing.T) {
	t.Parallel()
	lookup := func(name string) (string, bool) { return "here", name == "TOKEN" }
	got, err := envFlag{[]string{"A=b=c", "B=", "TOKEN"}}.variables(lookup)
	if d := cmp.Diff(map[string]string{"A": "b=c", "B": "", "TOKEN": "here"}, got); d != "" || err != nil {
		t.Error(err, d)
	}
	for _, bad := range [][]string{{"MISSING"}, {"A=1", "A=2"}} {
		if _, err := (envFlag{bad}).variables(lookup); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	for want, w := range map[string]api.Workspace{
		"":                             {},
		"A, B":                         {Env: map[string]string{"B": "s3cret", "A": ""}},
		"A, from the next start on":    {Env: map[string]string{"A": ""}, EnvWaits: true},
		"none, from the next start on": {EnvWaits: true},
	} {
		if got := environment(w); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestTimeZone(t *testing.T) {
	t.Parallel()
	link := func(target string) fs.FS {
		return fstest.MapFS{"etc/localtime": {Data: []byte(target), Mode: fs.ModeSymlink}, "etc/timezone": {Data: []byte("Europe/Berlin\n")}}
	}
	for _, c := range []struct {
		tz   string
		root fs.FS
		want string
	}{
		{"Asia/Seoul", link("/usr/share/zoneinfo/UTC"), "Asia/Seoul"},
		{":Asia/Seoul", link("/usr/share/zoneinfo/UTC"), "Asia/Seoul"},
		{"KST-9", link("/usr/share/zoneinfo/UTC"), ""},
		{"", link("/usr/share/zoneinfo/Asia/Seoul"), "Asia/Seoul"},
		{"", link("/var/db/timezone/zoneinfo/America/New_York"), "America/New_York"},
		{"", link("/elsewhere"), "Europe/Berlin"},
		{"", fstest.MapFS{"etc/timezone": {Data: []byte("Europe/Berlin\n")}}, "Europe/Berlin"},
		{"", fstest.MapFS{}, ""},
	} {
		if got := timeZone(c.tz, c.root); got != c.want {
			t.Errorf("TZ=%q: %q, want %q", c.tz, got, c.want)
		}
	}
}
