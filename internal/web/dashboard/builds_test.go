package dashboard

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/control/admin"
	"codehub/internal/runtime"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/testing/buildtest"
	"codehub/internal/testing/harness"
	"codehub/internal/users/auth"
)

// The list shows how far the images are, and an administrator makes a failed one again.
func TestBuildsOnList(t *testing.T) {
	t.Parallel()
	program := buildtest.New(t, buildtest.Image{Name: "ide", Ref: "codehub/ide:latest"}, buildtest.Image{Name: "slim", Ref: "codehub/workspace-slim:latest"})
	builder, err := imagebuild.New(t.Context(), imagebuild.Config{Program: program.Path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, func(c *Config) {
		c.Builds = builder
		c.Admin = admin.New(admin.Config{Store: c.Store, Passwords: c.Auth, Builds: builder})
	})
	w.AddAccount("eve", "a password of eve", false)
	boss, eve := w.loggedIn(), w.as("eve")
	lacks(t, "the list before there is something to make", boss.get("/").body, "builds-title")

	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { builder.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(end)
	state := func(n int, s imagebuild.State) func() bool {
		return func() bool { i := builder.Images()[n]; return i.State == s && (s != imagebuild.Making || i.Step > 0) }
	}
	harness.Eventually(t, "the first step", state(0, imagebuild.Making))
	contains(t, "the list", eve.get("/").body, "Images are being built", "Step 1 of 2: fetch the parts of ide", "codehub/workspace-slim:latest", "Waiting")
	contains(t, "the list in Korean", eve.get("/", "Accept-Language", "ko").body, "이미지를 빌드하고 있습니다", "2단계 중 1단계: fetch the parts of ide")

	program.Fail("ide")
	harness.Eventually(t, "the next image", state(1, imagebuild.Making))
	page := boss.get("/").body
	contains(t, "an administrator's list", page, "An image could not be built", "Build failed", "no route to the host of ide", "exit status 3", "Try again")
	page = eve.get("/").body
	contains(t, "a user's list", page, "Build failed", "An administrator can try again.")
	lacks(t, "a user's list", page, "no route to the host", "/admin/images/")

	if a := eve.post("/admin/images/ide/retry", url.Values{}); a.status != http.StatusForbidden || !state(0, imagebuild.Failed)() {
		t.Errorf("a user's attempt to try again: %d", a.status)
	}
	program.Finish("slim")
	program.Finish("ide")
	if a := boss.post("/admin/images/none/retry", url.Values{}); a.status != http.StatusNotFound {
		t.Errorf("an unknown image: %d", a.status)
	}
	if a := boss.post("/admin/images/ide/retry", url.Values{}); a.status != http.StatusSeeOther {
		t.Errorf("trying again: %d", a.status)
	}
	harness.Eventually(t, "the image is ready", state(0, imagebuild.Ready))
	harness.Eventually(t, "the other one, too", state(1, imagebuild.Ready))
	lacks(t, "the list once all are ready", boss.get("/").body, "builds-title", "Ready")
}

// Where workspaces are created, pages say that an image is missing, and how it comes to the server.
func TestMissingImageIsShown(t *testing.T) {
	t.Parallel()
	var missing atomic.Value
	missing.Store("")
	w := newWorld(t, func(c *Config) { c.MissingImage = func() string { return missing.Load().(string) } })
	b := w.loggedIn()
	for _, path := range []string{"/", "/workspaces/new"} {
		lacks(t, path, b.get(path).body, "builds-title", "image-missing")
	}
	missing.Store("the IDE's image: image codehub/ide:latest: " + fmt.Sprintf(runtime.MsgNotBuilt, "codehub/ide:latest") + " cause")
	contains(t, "the list", b.get("/").body, "An image is missing", "The server does not have the image codehub/ide:latest.", "codehub images load FILE")
	contains(t, "the dialog", b.get("/workspaces/new").body, "image-missing", "codehub images load FILE")
	page := b.get("/", "Accept-Language", "ko").body
	contains(t, "the list in Korean", page, "이미지가 없습니다", "codehub images load FILE")
	lacks(t, "the list in Korean", page, "The server", "cause")
	missing.Store("no space left")
	lacks(t, "with another error", b.get("/").body, "builds-title", "no space left")
}

// The stream replaces the row of an image alone, and the whole part when it comes and goes.
func TestBuildsInStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	l := w.dash.newLive(r, w.caller(auth.AdminUsername), func() {})
	began := time.Now()
	images := []imagebuild.Image{{Name: "ide", Ref: "codehub/ide", State: imagebuild.Making, Step: 1, Steps: 2, Text: "fetch", Began: began}, {Name: "slim", Ref: "codehub/slim", State: imagebuild.Waiting}}
	next := func(after time.Duration) (string, bool) {
		t.Helper()
		s := new(cardOrder).live(listView{First: true, Builds: buildsOf(images, true, began.Add(after))})
		s.notices = &notices{}
		html, err := l.fresh(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(html), s.busy
	}
	html, busy := next(0)
	contains(t, "the first", html, `id="builds"`, "Step 1 of 2")
	if !busy {
		t.Error("the page is not refreshed soon")
	}
	html, _ = next(80 * time.Second)
	contains(t, "the row", html, `id="build-ide"`, "1 min 20 s", `hx-swap-oob="true"`)
	lacks(t, "the row", html, `id="builds"`, `id="build-slim"`)
	if html, _ = next(80 * time.Second); html != "" {
		t.Errorf("without a change: %s", html)
	}
	images[0].State, images[0].Err = imagebuild.Failed, "exit status 1"
	html, _ = next(80 * time.Second)
	contains(t, "a failure", html, `<section id="builds"`, "An image could not be built", `id="retry-ide"`)
	for i := range images {
		images[i].State, images[i].Ended = imagebuild.Ready, began
	}
	html, busy = next(0)
	contains(t, "the end", html, `<section id="builds" hx-swap-oob="true">`)
	lacks(t, "the end", html, "build-ide")
	if busy {
		t.Error("the page is refreshed often although all images are ready")
	}
}
