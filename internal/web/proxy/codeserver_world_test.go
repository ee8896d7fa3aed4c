package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"codehub/internal/bus/activity"
	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/browser"
	"codehub/internal/workspace"
)

// codeServer is a real code-server container behind a recording proxy, and a
// Chromium tab.
type codeServer struct {
	*testing.T
	world     *world
	recorder  *activity.Recorder
	container string
	tab       context.Context
}

// These settings let a test read the terminal, and leave the page without a prompt.
const codeServerSettings = `"terminal.integrated.gpuAcceleration": "off", "window.confirmBeforeClose": "never",`

// newCodeServer runs the IDE in the workspace image with the given additional settings.
func newCodeServer(t *testing.T, more string) *codeServer {
	t.Helper()
	harness.NeedsDocker(t)
	c := &codeServer{T: t, recorder: activity.New()}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		t.Fatal(err)
	}
	upstream := runtime.Upstream{Secret: hex.EncodeToString(secret)}
	// Docker fills the volume of a new container from its image.
	ide := c.docker("create", "--label", "codehub.test=proxy", "--volume", "/opt/codehub-ide", harness.IDEImage())
	c.removes(ide)
	c.container = c.docker("run", "--detach", "--rm", "--label", "codehub.test=proxy", "--env", "HASHED_PASSWORD="+upstream.Secret,
		"--init", "--volumes-from", ide+":ro", "--entrypoint", "/opt/codehub-ide/start", harness.WorkspaceImage())
	c.removes(c.container)
	upstream.ContainerID = c.container
	upstream.Addr = c.docker("inspect", "--format", "{{.NetworkSettings.IPAddress}}", c.container) + ":8080"
	harness.Eventually(t, "code-server answers", func() bool {
		res, err := noRedirects.Get("http://" + upstream.Addr + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	c.docker("exec", c.container, "sh", "-c", `mkdir -p ~/.local/share/code-server/User && cd ~/.local/share/code-server/User && echo "$0" > settings.json`, "{"+strings.TrimSuffix(codeServerSettings+more, ",")+"}")
	c.world = newWorld(t, func(config *Config) { config.Activity, config.IDE = c.recorder, &ideAnswers{} })
	c.world.runtime.put(wsA, upstream)
	c.browse()
	return c
}

func (c *codeServer) docker(args ...string) string {
	c.Helper()
	out, err := exec.CommandContext(c.Context(), "docker", args...).CombinedOutput()
	if err != nil {
		c.Fatalf("docker %s: %v: %s", args[0], err, out)
	}
	return strings.TrimSpace(string(out))
}

// removes removes a container and its volumes at the end of the test.
func (c *codeServer) removes(container string) {
	c.Cleanup(func() {
		out, err := exec.Command("docker", "rm", "--force", "--volumes", container).CombinedOutput()
		if err != nil {
			c.Errorf("remove the container: %v: %s", err, out)
		}
	})
}

func (c *codeServer) browse() {
	c.Helper()
	c.tab = browser.New(c, c.world.server.URL)
	// The first call starts the browser, which ends with this context.
	err := chromedp.Do(c.tab, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.SetCookie, network.SetCookieParams{Name: sessionCookie, Value: "ann-1", URL: c.world.server.URL})
		return err
	}))
	if err != nil {
		c.Fatalf("start Chromium: %v", err)
	}
}

// do runs actions in the tab.
func (c *codeServer) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.tab, harness.Patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		ctx, cancel := context.WithTimeout(c.tab, 10*time.Second)
		defer cancel()
		shown, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 2000)`))
		c.Fatalf("%s: %v\n%s", what, err, shown)
	}
}

// opening is held while an IDE starts.
var opening sync.Mutex

// open opens a folder and a file in it, unless that is "", and waits for the
// extension host.
func (c *codeServer) open(folder, file string) {
	c.Helper()
	address := c.world.server.URL + under(wsA) + "/?folder=" + folder
	if file != "" {
		address += fmt.Sprintf(`&payload=[["openFile","vscode-remote://%s%s/%s"]]`, c.world.server.Listener.Addr(), folder, file)
	}
	// The starts of several IDEs at once take the processor from each other.
	opening.Lock()
	defer opening.Unlock()
	// A page gives its extension host up if that takes more than a minute to start, as on a busy
	// machine. Then only a reload helps.
	for try := 1; ; try++ {
		c.do("open "+folder, chromedp.Navigate(address), becomes(`document.querySelector('.monaco-workbench .part.editor') !== null`))
		if file != "" {
			c.do("see "+file, becomes(`document.querySelector('.editor-instance .view-line') !== null`))
		}
		// Remote commands exist once it has connected.
		c.command("Terminal: Create New Terminal", false)
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			// One WebSocket for remote commands, and one for the extension host.
			if len(c.sockets()) == 2 && c.hasExtensions() {
				return
			}
		}
		if try == 3 {
			c.Fatalf("the tab has %d WebSockets, want 2; extensions are active: %v", len(c.sockets()), c.hasExtensions())
		}
	}
}

// hasExtensions reports whether an extension host has activated an extension, which its log says.
func (c *codeServer) hasExtensions() bool {
	const log = `cat $(find ~/.local/share/code-server -name remoteexthost.log) </dev/null | grep -q _doActivateExtension`
	return exec.CommandContext(c.Context(), "docker", "exec", c.container, "sh", "-c", log).Run() == nil
}

// sockets returns the number of the tab's WebSockets.
func (c *codeServer) sockets() map[*connection]bool {
	open := c.world.proxy.open.shard(string(wsA))
	open.mu.Lock()
	defer open.mu.Unlock()
	is := map[*connection]bool{}
	for connection := range open.workspaces[wsA] {
		if connection.isWebSocket() {
			is[connection] = true
		}
	}
	return is
}

// command runs a command from the command palette.
func (c *codeServer) command(name string, take bool) {
	c.Helper()
	offered := fmt.Sprintf(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes(%q))`, name[strings.Index(name, ":")+2:])
	for try := 1; ; try++ {
		c.do("open the command palette", chromedp.KeyEvent(kb.F1), chromedp.WaitVisible(".quick-input-widget input"), insert(name))
		if c.happens(offered, 3*time.Second) {
			break
		}
		if try == 20 {
			c.Fatalf("%s is not offered", name)
		}
		c.do("close the command palette", chromedp.KeyEvent(kb.Escape))
	}
	key := kb.Escape
	if take {
		key = "\r"
	}
	c.do("take it or leave it", chromedp.KeyEvent(key))
}

// wheel scrolls in the editor.
func wheel() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseWheel, X: 700, Y: 200, DeltaX: 1, DeltaY: 300})
		return err
	})
}

// happens reports whether a JavaScript expression becomes true within the time.
func (c *codeServer) happens(expression string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(c.tab, within)
	defer cancel()
	return chromedp.Do(ctx, becomes(expression)) == nil
}

// insert types as an input method does.
func insert(s string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, input.InsertText, input.InsertTextParams{Text: s})
		return err
	})
}

// becomes waits until a JavaScript expression is true.
func becomes(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		for {
			if ok, err := chromedp.Evaluate[bool](expression)(ctx, t); err == nil && ok {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("never true: %s: %w", expression, ctx.Err())
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
}

// used waits until activity of the kind has been recorded since a time.
func (c *codeServer) used(since time.Time, kind activity.Kind, within time.Duration) activity.Access {
	c.Helper()
	last, ok := c.isUsed(since, kind, within)
	if !ok {
		c.Fatalf("no %s within %v: last was %s %v ago, with %d WebSockets open", kind, within, last.Kind, time.Since(last.At), len(c.sockets()))
	}
	return last
}

// isUsed is used without failing the test.
func (c *codeServer) isUsed(since time.Time, kind activity.Kind, within time.Duration) (last activity.Access, ok bool) {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if last, _ = c.recorder.Last(wsA); last.Kind == kind && last.At.After(since) {
			return last, true
		}
	}
	return last, false
}

// quiet waits until no activity has been recorded for the time.
func (c *codeServer) quiet(long, within time.Duration) {
	c.Helper()
	id := workspace.ID(wsA)
	harness.Await(c, within, fmt.Sprintf("quiet for %v", long), func() activity.Access {
		last, _ := c.recorder.Last(id)
		return last
	}, func(last activity.Access) bool { return time.Since(last.At) > long })
}
