package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/internal/workspace"
)

// viteProject returns a tar of testdata/vite with the packages of its lock file, which npm
// fetches once and then has in its cache.
var viteProject = sync.OnceValues(func() ([]byte, error) {
	dir := filepath.Join(env.scratch, "vite")
	if err := os.CopyFS(dir, os.DirFS("testdata/vite")); err != nil {
		return nil, err
	}
	install := exec.Command("npm", "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm ci: %w: %s", err, out)
	}
	var files, errors bytes.Buffer
	pack := exec.Command("tar", "-c", "-C", dir, ".")
	pack.Stdout, pack.Stderr = &files, &errors
	if err := pack.Run(); err != nil {
		return nil, fmt.Errorf("tar: %w: %s", err, &errors)
	}
	return files.Bytes(), nil
})

// viteConfig returns the vite.config.js that docs/ports.md has for a mode.
func viteConfig(t *testing.T, s *server) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/ports.md")
	if err != nil {
		t.Fatal(err)
	}
	configs := regexp.MustCompile("(?s)```js\n(.*?)```").FindAllSubmatch(page, -1)
	if len(configs) != 2 {
		t.Fatalf("docs/ports.md has %d configurations of Vite, want one for hosts and one for path mode", len(configs))
	}
	switch {
	case s.mode == pathMode:
		return string(configs[1][1])
	case s.mode == ownOrigins:
		return "" // none is needed
	}
	u, err := url.Parse(s.originOf("x"))
	if err != nil {
		t.Fatal(err)
	}
	config := string(configs[0][1])
	ours := strings.Replace(config, "'.ws.example.com'", "'"+strings.TrimPrefix(u.Hostname(), "x")+"'", 1)
	if ours == config {
		t.Fatalf("the configuration in docs/ports.md does not name the hosts:\n%s", config)
	}
	return ours
}

// testHotReload serves a page with Vite on 127.0.0.1 and port 3000 of a workspace, on which
// nothing listens. When a module changes, the page shows it without being reloaded.
func testHotReload(t *testing.T, s *server, b *browser, id string) {
	in := workspaceShell{s, id}
	project, err := viteProject()
	if err != nil {
		t.Fatal(err)
	}
	in.run(bytes.NewReader(project), "mkdir ~/hot && tar -x -C ~/hot")
	if config := viteConfig(t, s); config != "" {
		in.run(strings.NewReader(config), "cat > ~/hot/vite.config.js")
	}
	port := s.portOf(id, "3000")
	b.do("wait for the development server", navigate(port+"/"), until(`document.querySelector('#wait') !== null`))
	in.run(nil, "cd ~/hot && { node_modules/.bin/vite --host 127.0.0.1 --port 3000 --strictPort > ~/vite.log 2>&1 & }")
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("docker", "exec", workspace.ID(id).DockerName(), "cat", "/home/coder/vite.log").CombinedOutput()
			t.Logf("Vite's log: %s", out)
		}
	})
	shows := func(text, count string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`document.querySelector('#text')?.innerText === %q && document.querySelector('#count').innerText === %q`, text, count))
	}
	b.do("see the module's text", until(fmt.Sprintf(`location.href === %q`, port+"/")), shows("before", "0"))
	b.do("give the page a state", chromedp.Click("#count"), chromedp.Click("#count"), until(`window.notReloaded = true`), shows("before", "2"))
	in.run(nil, "sed -i s/before/after/ ~/hot/text.js")
	b.do("see the change with the state", shows("after", "2"), until(`window.notReloaded === true`))
	// The configuration in the documentation is needed: other hosts are refused.
	if s.mode == siblings {
		if got := in.run(nil, "curl --silent --header 'Host: 3000--x.example.org' http://127.0.0.1:3000/"); !strings.Contains(got, "is not allowed") {
			t.Errorf("Vite serves any host: %s", got)
		}
	}
}
