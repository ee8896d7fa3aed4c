package httpapi

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/api"
	"codehub/client"
	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/storage/store"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
)

// withFolder is an environment with a backup of a folder.
type withFolder struct {
	*backedUp
	agents *agenttest.Agents
	home   string // as it was backed up
	id     string // of the backup
}

func newWithFolder(t *testing.T, opts ...option) *withFolder {
	t.Helper()
	f := &withFolder{agents: agenttest.New(t), home: t.TempDir()}
	f.backedUp = newBackedUp(t, append([]option{func(c *Config) {
		c.Attach = attach.New(attach.Config{Store: c.Store, Runtime: f.agents, Sessions: c.Auth, CheckInterval: 50 * time.Millisecond, Patience: time.Second})
	}}, opts...)...)
	check(t, os.MkdirAll(filepath.Join(f.home, "src/sub"), 0o755))
	check(t, os.WriteFile(filepath.Join(f.home, "src/main.go"), []byte("package main"), 0o640))
	check(t, os.WriteFile(filepath.Join(f.home, "src/name\xff\n"), random(1<<20), 0o600))
	check(t, os.Link(filepath.Join(f.home, "src/main.go"), filepath.Join(f.home, "src/sub/same")))
	f.id = f.backup(f.home, "", time.Now().Add(-time.Hour))
	f.path += "/" + f.id
	return f
}

// run lets the workspace run, and returns its home.
func (f *withFolder) run() string {
	f.t.Helper()
	f.Exec(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, f.ws.ID)
	return f.agents.Start(f.ws.ID).Home
}

func TestTarOfBackup(t *testing.T) {
	t.Parallel()
	e := newWithFolder(t)
	names := func(body string) (list []string) {
		t.Helper()
		for r := tar.NewReader(strings.NewReader(body)); ; {
			h, err := r.Next()
			if err == io.EOF {
				return list
			}
			check(t, err)
			list = append(list, h.Name)
		}
	}
	a := e.want(200, "", "GET", e.path+"/tar?path=/src/", "", as(e.ann))
	if got, want := names(a.body), []string{"./src/", "./src/main.go", "./src/name\xff\n", "./src/sub/", "./src/sub/same"}; !slices.Equal(got, want) {
		t.Errorf("the tar has %q", got)
	}
	if got := a.header.Get("Content-Disposition"); got != `attachment; filename="src.tar"` || a.header.Get("Content-Type") != "application/x-tar" {
		t.Errorf("%q, %q", got, a.header)
	}
	a = e.want(200, "", "GET", e.path+"/tar?path="+url.QueryEscape("src/name\xff\n"), "", as(e.ann))
	if got := names(a.body); !slices.Equal(got, []string{"./name\xff\n"}) {
		t.Errorf("the tar has %q", got)
	}
	if a := e.want(200, "", "GET", e.path+"/tar", "", as(e.ann)); len(names(a.body)) != 6 || !strings.Contains(a.header.Get("Content-Disposition"), `"web.tar"`) {
		t.Errorf("the tar of the home has %q; %v", names(a.body), a.header)
	}
	if a := e.want(200, "", "HEAD", e.path+"/tar?path=src", "", as(e.ann)); a.body != "" {
		t.Error("HEAD has a body")
	}
	e.want(404, "not_found", "GET", e.path+"/tar?path=none", "", as(e.ann))
	e.want(403, "forbidden", "GET", e.path+"/tar?path=src", "", as(e.eve))
	c, _ := e.tokenClient(e.ann)
	r, err := c.DownloadBackupTar(t.Context(), string(e.ws.ID), e.id, "src/main.go")
	check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(t, err)
	if got := names(string(b)); !slices.Equal(got, []string{"./main.go"}) {
		t.Errorf("the tar has %q", got)
	}
	e.bucket.set(func(f *fakeBucket) { f.openErr = fmt.Errorf("%w: %w", store.ErrUnavailable, os.ErrNotExist) })
	e.want(503, "unavailable", "GET", e.path+"/tar?path=src", "", as(e.ann))
	e.bucket.set(func(f *fakeBucket) { f.full = true })
	e.run()
	for _, rest := range []string{"/tar?path=src", "/files", "/file?path=src/main.go", "/changes"} {
		e.want(429, "too_many_streams", "GET", e.path+rest, "", as(e.ann))
	}
	e.want(429, "too_many_streams", "POST", e.path+"/put", `{"path":"src"}`, as(e.ann))
}

// A tar that the bucket does not deliver is cut short where its reader sees it.
func TestTarOfBackupFromStalledBucket(t *testing.T) {
	t.Parallel()
	e := newWithFolder(t, func(c *Config) { c.ReadWithin = 500 * time.Millisecond })
	c, _ := e.tokenClient(e.ann)
	e.bucket.set(func(f *fakeBucket) {
		for name := range f.objects {
			if strings.Contains(name, "packs/") {
				delete(f.objects, name)
			}
		}
	})
	r, err := c.DownloadBackupTar(t.Context(), string(e.ws.ID), e.id, "src")
	if err == nil {
		defer r.Close()
		_, err = io.Copy(io.Discard, r)
	}
	if err == nil {
		t.Error("a tar without content is complete")
	}
}

func TestPutBack(t *testing.T) {
	t.Parallel()
	e := newWithFolder(t)
	put := e.path + "/put"
	e.want(409, "not_running", "POST", put, `{"path":"src"}`, as(e.ann))
	home := e.run()
	done := read[api.PutBackResult](t, e.want(200, "", "POST", put, `{"path":"src"}`, as(e.ann)))
	if done.Path != "src" || done.Kept != "" {
		t.Errorf("%+v", done)
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Stat(filepath.Join(home, "src/main.go"), &a), unix.Stat(filepath.Join(home, "src/sub/same"), &b)); err != nil || a.Ino != b.Ino {
		t.Errorf("the hard link is another file: %v", err)
	}
	got, err := os.ReadFile(filepath.Join(home, "src/name\xff\n"))
	if err != nil || !bytes.Equal(got, random(1<<20)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	check(t, os.WriteFile(filepath.Join(home, "src/main.go"), []byte("mine"), 0o600))
	e.want(409, "file_exists", "POST", put, `{"path":"src/main.go"}`, as(e.ann))
	c, _ := e.tokenClient(e.ann)
	done, err = c.PutBack(t.Context(), string(e.ws.ID), e.id, api.PutBack{Path: "/src/main.go", Replace: true})
	check(t, err)
	if kept, err := os.ReadFile(filepath.Join(home, done.Kept)); err != nil || string(kept) != "mine" || filepath.Dir(done.Kept) != "src" {
		t.Errorf("%+v: %q, %v", done, kept, err)
	}
	done, err = c.PutBack(t.Context(), string(e.ws.ID), e.id, api.PutBack{Path: "src/sub/same", To: "new/folder/file"})
	if content, readErr := os.ReadFile(filepath.Join(home, "new/folder/file")); err != nil || readErr != nil || string(content) != "package main" || done.Path != "new/folder/file" {
		t.Errorf("%+v, %v: %q, %v", done, err, content, readErr)
	}

	outside := t.TempDir()
	check(t, os.Symlink(outside, filepath.Join(home, "out")))
	for _, body := range []string{`{"path":""}`, `{"path":"."}`, `{"path":"src","to":"/"}`, `{"path":"src","to":"../x"}`, `{"path":"src","to":"a\u0000"}`, `{"path":"src","to":"out/x"}`, `{"to":"x"}`, `{"path":"src","to":"new/folder/file/x"}`} {
		e.want(400, "invalid_request", "POST", put, body, as(e.ann))
	}
	e.want(404, "not_found", "POST", put, `{"path":"none"}`, as(e.ann))
	e.want(403, "forbidden", "POST", put, `{"path":"src"}`, as(e.eve))
	if list, _ := os.ReadDir(outside); len(list) > 0 {
		t.Errorf("%v is outside of the home", list)
	}
	if n := fixture.Query[int](e, `SELECT count(*)::int FROM audit_log WHERE action = 'workspace.put_back' AND target = $1 AND details->>'backup' = $2`, string(e.ws.ID), e.id); n != 3 {
		t.Errorf("the audit log has %d entries", n)
	}

	// A bucket that has lost the content leaves the home as it is.
	before, _ := os.ReadDir(home)
	e.bucket.set(func(f *fakeBucket) {
		for name := range f.objects {
			if strings.Contains(name, "packs/") {
				delete(f.objects, name)
			}
		}
	})
	if a := e.do("POST", Prefix+put, `{"path":"src","to":"again"}`, as(e.ann)); a.status != 404 && a.status != 409 {
		t.Errorf("%d %s", a.status, a.body)
	}
	// The agent may notice the end of the request later.
	harness.Await(t, limit, "the former home", func() []os.DirEntry { list, _ := os.ReadDir(home); return list }, func(list []os.DirEntry) bool { return len(list) == len(before) })
}

// Agents that are too old, full or hostile get an error that says so.
func TestPutBackToOtherAgents(t *testing.T) {
	t.Parallel()
	e := newWithFolder(t)
	e.run()
	for what, c := range map[string]struct {
		answer agenttest.Answer
		status int
		code   string
	}{
		"old":     {agenttest.Raw("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), 409, "no_agent"},
		"full":    {agenttest.Refused(http.StatusInsufficientStorage, "no space left"), 409, "disk_full"},
		"refuses": {agenttest.Refused(http.StatusTeapot, "\x1b[2J"), 400, "invalid_request"},
		"ends":    {agenttest.Upgraded(agenttest.Raw("")), 503, "unavailable"},
		"lies":    {agenttest.Upgraded(agenttest.Raw("a\x00\x00\x00\x02{}")), 503, "unavailable"},
	} {
		e.agents.Replace(e.ws.ID, agenttest.Answers{agent.PathHello: agenttest.JSON(agent.Hello{Version: agent.Version, Oldest: agent.Oldest}), agent.PathUnpack: c.answer})
		a := e.do("POST", Prefix+e.path+"/put", `{"path":"src"}`, as(e.ann))
		if a.status != c.status || !strings.Contains(a.body, c.code) || strings.Contains(a.body, "\x1b") {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	e.agents.Stop(e.ws.ID)
	c, _ := e.tokenClient(e.ann)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := c.PutBack(ctx, string(e.ws.ID), e.id, api.PutBack{Path: "src"}); client.CodeOf(err) == "" {
		t.Errorf("a workspace without a container: %v", err)
	}
}
