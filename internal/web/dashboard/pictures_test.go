package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/runtime/agent"
	"codehub/internal/runtime/imagebuild"
	"codehub/internal/testing/buildtest"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

// listens gives the workspace an agent that reports these ports.
func (l *containers) listens(t *testing.T, in workspace.ID, ports []agent.Port) {
	answer, err := json.Marshal(map[string]any{"ports": ports})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = w.Write(answer)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n%s\n", answer)
		_, _ = io.Copy(io.Discard, conn)
	}))
	t.Cleanup(s.Close)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in, l.agent = in, strings.TrimPrefix(s.URL, "http://")
}

// TestReadmePictures shows what the pictures of the README show: workspaces that are well, at
// origins of their own. make screenshots takes them here, and two more of other pages.
func TestReadmePictures(t *testing.T) {
	t.Parallel()
	program := buildtest.New(t, buildtest.Image{Name: "ide", Ref: "codehub/ide:latest"}, buildtest.Image{Name: "slim", Ref: "codehub/workspace-slim:latest"}, buildtest.Image{Name: "full", Ref: "codehub/workspace:latest"})
	builder, err := imagebuild.New(t.Context(), imagebuild.Config{Program: program.Path, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := newPortsWorld(t, workspace.VisibleUsers)
	w.dash.SSH, w.dash.Usage, w.dash.Builds = sshServer, steadyUsage{}, builder
	w.dash.StandbyTTL, w.dash.ArchiveTTL = 3*3600, 24*3600
	w.Exec(`UPDATE users SET max_running = 5 WHERE username = 'admin'`)
	about := map[string]string{
		"web-frontend": "The shop’s storefront", "api-server": "Orders, payments and the product catalogue", "machine-learning": "Notebooks for the recommendation model",
		"design-system": "Shared components, with their documentation", "compiler": "Experiments with the new parser",
	}
	ids := map[string]workspace.ID{}
	add := func(name string, used time.Duration, state func(*workspace.Workspace), desired string) {
		ids[name] = w.add(name, state)
		w.want(ids[name], "desired_state", desired)
		w.want(ids[name], "description", about[name])
		w.Exec(`UPDATE workspaces SET home_bytes = 2400000000 WHERE id = $1`, string(ids[name]))
		w.used(ids[name], used)
	}
	add("compiler", 9*24*time.Hour, archived("k", 734_000_000), "ARCHIVED")
	add("design-system", 5*time.Hour, standby, "STANDBY")
	add("machine-learning", 52*time.Minute, running, "RUNNING")
	add("api-server", 12*time.Minute, running, "RUNNING")
	add("web-frontend", 3*time.Minute, running, "RUNNING")
	w.logs.listens(t, ids["web-frontend"], []agent.Port{{Port: 3000, Process: "node", Since: time.Now().Add(-7 * time.Minute).Unix()}, {Port: 5432, Process: "postgres", Since: time.Now().Add(-40 * time.Minute).Unix()}})
	w.want(ids["web-frontend"], "memo", "Runs on port 3000.\nStaging: ask Mina for the key.")
	w.person("joon")

	b := w.tab()
	b.logIn()
	own := "/workspaces/" + string(ids["web-frontend"])
	for _, scheme := range []string{"light", "dark"} {
		l := screen{scheme + "-en", scheme, "en-US,en", 1280, 800}
		b.as(l)
		for name, path := range map[string]string{"readme-list": "/", "readme-workspace": own} {
			b.visit(path)
			if path == own {
				b.shown("#usage-title")
				b.shown("#shares h2")
			}
			if bad := value(b, chromedp.Evaluate[string](`[...document.querySelectorAll('.banner, .problem, .warn, .image-update')].filter(e => e.getClientRects().length).map(e => e.textContent.trim()).join('; ')`)); bad != "" {
				t.Errorf("%s shows a warning: %s", name, bad)
			}
			b.shoot(t.ArtifactDir(), l, name)
		}
	}

	var building sync.WaitGroup
	ctx, end := context.WithCancel(t.Context())
	building.Go(func() { builder.Run(ctx) })
	t.Cleanup(building.Wait)
	t.Cleanup(end)
	program.Finish("ide")
	harness.Eventually(t, "the second image", func() bool { i := builder.Images()[1]; return i.State == imagebuild.Making && i.Step > 0 })
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/")
		b.shown("#builds-title")
		b.shoot(t.ArtifactDir(), l, "list-builds")
	}
	w.Exec(`INSERT INTO hand_over_requests (workspace_id, user_id, to_user_id, name, by_username, message)
		SELECT $1, owner_user_id, (SELECT id FROM users WHERE username = 'joon'), '', 'mina', 'Joon takes over the design system from Monday.' FROM workspaces WHERE id = $1`, string(ids["design-system"]))
	for _, l := range b.screens() {
		b.as(l)
		b.visit("/workspaces/" + string(ids["design-system"]))
		b.shown("#asked-accept")
		b.shown("#shares h2")
		b.shoot(t.ArtifactDir(), l, "detail-hand-over")
	}
}
