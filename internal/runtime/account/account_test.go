package account

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
)

func TestWithUser(t *testing.T) {
	t.Parallel()
	const ours, group = "coder:x:1000:1000:coder:/home/coder:/bin/sh\n", "coder:x:1000:\n"
	for before, want := range map[string]string{
		"":                                       ours,
		"root:x:0:0::/root:/bin/sh\n" + ours:     ours + "root:x:0:0::/root:/bin/sh\n",
		"root:x:0:0::/root:/bin/sh":              ours + "root:x:0:0::/root:/bin/sh\n",
		"node:x:1000:1000::/home/node:/bin/sh\n": ours + "node:x:1000:1000::/home/node:/bin/sh\n",
		"coder:x:1234:1234::/srv/coder:/bin/sh\ndaemon:x:1:1:::\n":          ours + "daemon:x:1:1:::\n",
		"coder:x:1000:1000::/home/coder:/bin/zsh\n":                         ours,
		"coder:x:1000:1000::/elsewhere:/bin/sh\r\n":                         ours,
		"broken\n\n" + "coder:x:1000:1000:a b:/home/coder:/bin/sh\nx:x:5\n": "broken\n\ncoder:x:1000:1000:a b:/home/coder:/bin/sh\nx:x:5\n",
	} {
		if before == "root:x:0:0::/root:/bin/sh\n"+ours {
			want = before // it is in order
		}
		if got := withUser(before, "/bin/sh", 1000); got != want {
			t.Errorf("withUser(%q) = %q, want %q", before, got, want)
		}
		if got := withUser(want, "/bin/sh", 1000); got != want && strings.Count(want, ":1000:1000:") == 1 {
			t.Errorf("withUser(%q) = %q", want, got)
		}
	}
	for before, want := range map[string]string{
		"":                           group,
		group:                        group,
		"root:x:0:\n" + group:        "root:x:0:\n" + group,
		"node:x:1000:\ncoder:x:5:\n": group + "node:x:1000:\n",
	} {
		if got := withGroup(before, 1000); got != want {
			t.Errorf("withGroup(%q) = %q, want %q", before, got, want)
		}
	}
}

func TestGivenShell(t *testing.T) {
	t.Parallel()
	for passwd, want := range map[string]string{
		"": "",
		"root:x:0:0::/root:/bin/bash\ncoder:x:1000:1000::/home/coder:/usr/bin/zsh\n": "/usr/bin/zsh",
		"coder:x:1234:1234::/srv/coder:/bin/false\n":                                 "",
		"coder:x:1234:1234::/srv/coder:/bin/zsh\n":                                   "",
		"coder:x:1000:1000::/srv/coder:/usr/sbin/nologin\n":                          "",
		"coder:x:1000:1000::/srv/coder:zsh\n":                                        "",
		"coder:x:1000:1000::/srv/coder\n":                                            "",
		"coder:x:0:0::/evil:/evil/sh\ncoder:x:1000:1000::/home/coder:/bin/zsh\n":     "",
	} {
		if got := givenShell(passwd); got != want {
			t.Errorf("%q: %q, want %q", passwd, got, want)
		}
	}
}

func TestUserEnv(t *testing.T) {
	t.Parallel()
	got := Env([]string{"PATH=/a:/opt/codehub", "LC_ALL=ko_KR.UTF-8", "HOME=/root"}, "/bin/bash")
	if got["PATH"] != "/a:/opt/codehub:/home/coder/.local/bin" || got["HOME"] != "/home/coder" || got["SHELL"] != "/bin/bash" || got["LANG"] != "" {
		t.Errorf("%v", got)
	}
	got = Env(nil, IDEShell)
	if got["PATH"] != SearchPath+":/home/coder/.local/bin:/opt/codehub:/opt/codehub-ide/bin" || got["LANG"] != "C.UTF-8" {
		t.Errorf("%v", got)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	spec := runtime.ContainerSpec{Secret: "s", TimeZone: "Asia/Seoul", Env: map[string]string{"B": "2", "A": "1"}}
	for name, c := range map[string]struct {
		spec  runtime.ContainerSpec
		own   map[string]string
		zoned bool
		want  map[string]string
	}{
		"time zone":                    {spec, nil, false, map[string]string{"A": "1", "B": "2", "HASHED_PASSWORD": "s", "TZ": "Asia/Seoul"}},
		"time zone of the image":       {spec, nil, SetsZone([]string{"PATH=/bin", "TZ=UTC"}), map[string]string{"A": "1", "B": "2", "HASHED_PASSWORD": "s"}},
		"time zone of the variables":   {runtime.ContainerSpec{Secret: "s", TimeZone: "UTC", Env: map[string]string{"TZ": "Asia/Seoul"}}, nil, false, map[string]string{"HASHED_PASSWORD": "s", "TZ": "Asia/Seoul"}},
		"image's user is root":         {runtime.ContainerSpec{Secret: "s"}, map[string]string{"HOME": "/home/coder"}, false, map[string]string{"HASHED_PASSWORD": "s", "HOME": "/home/coder"}},
		"home of the workspace user":   {runtime.ContainerSpec{Secret: "s", Env: map[string]string{"HOME": "/x", "SHELL": "/x"}}, map[string]string{"HOME": "/home/coder", "SHELL": "/bin/sh"}, false, map[string]string{"HASHED_PASSWORD": "s", "HOME": "/home/coder", "SHELL": "/x"}},
		"with a setup":                 {runtime.ContainerSpec{Secret: "s", Setup: true}, nil, false, map[string]string{"HASHED_PASSWORD": "s", "CODEHUB_SETUP": "1"}},
		"codehub's own variables last": {runtime.ContainerSpec{Secret: "s", Env: map[string]string{"HASHED_PASSWORD": "x"}}, nil, false, map[string]string{"HASHED_PASSWORD": "s"}},
	} {
		if d := cmp.Diff(c.want, Environment(c.spec, c.own, c.zoned, nil)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
