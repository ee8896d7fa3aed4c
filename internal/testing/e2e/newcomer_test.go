package e2e

import (
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"golang.org/x/sys/unix"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/idp"
)

// The repository of a newcomer, whose dependency is installed without a network.
const newcomerFiles = `
mkdir -p vendor/greeting
echo '# API' > README.md
echo '{"name": "api", "private": true, "dependencies": {"greeting": "file:vendor/greeting"}}' > package.json
echo '{"name": "greeting", "version": "1.0.0"}' > vendor/greeting/package.json
echo "module.exports = 'hello'" > vendor/greeting/index.js
echo "console.log(require('greeting'))" > app.js
echo node_modules > .gitignore`

const newcomerTemplate = `
title: API
scripts: {create: npm install --offline --no-audit --no-fund}
`

// maxClicks is how many clicks lead from the link in a README to the cursor in a file of its
// repository.
const maxClicks = 3

// From the badge in a README to the cursor in a file of the repository, with its dependencies
// installed: two clicks, and a third one to connect the account if the repository is private.
func TestNewcomerClock(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	t.Run("public", func(t *testing.T) {
		t.Parallel()
		git := &httptest.Server{Listener: listenOutside(t, 0), Config: &http.Server{Handler: gitBackend(t, newcomerFiles)}}
		git.Start()
		t.Cleanup(git.Close)
		n := arrive(t, git.URL+"/api.git", nil)
		n.follow()
		n.create()
		n.write()
		n.expect(2)
	})
	t.Run("private", func(t *testing.T) {
		t.Parallel()
		newcomerOfPrivate(t)
	})
}

func newcomerOfPrivate(t *testing.T) {
	dir := scratch(t)
	keys, file := filepath.Join(dir, "secret.key"), filepath.Join(dir, "git.yaml")
	line, err := exec.CommandContext(t.Context(), env.binary, "secret-key", "new").Output()
	if err == nil {
		err = os.WriteFile(keys, line, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := listenOutside(t, 1)
	host := "http://" + l.Addr().String()
	app := func(address string) {
		t.Helper()
		text := fmt.Sprintf(`apps: [{id: company, title: Company Git, type: gitlab, url: "%s", hosts: ["%s"], client_id: "%s", client_secret: "%s", scopes: [openid, offline_access]}]`, address, host, idp.ClientID, idp.ClientSecret)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	app("http://127.0.0.1:1") // the provider has to know the server's address first
	var provider *idp.Provider
	var mu sync.Mutex
	used := map[string]bool{} // the tokens that Git sent
	sent := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(used)
	}
	n := arrive(t, host+"/api.git", func(s *server) string {
		provider = idp.Start(t, idp.Options{RedirectURI: strings.Replace(s.URL, "codehub.localhost", "localhost", 1) + "/settings/git/company/callback", AuthMethod: "client_secret_post"})
		app(provider.Issuer)
		s.Stop()
		s.restart()
		return provider.Issuer
	}, "CODEHUB_SECRET_KEY_FILE="+keys, "CODEHUB_GIT_FILE="+file)
	backend := gitBackend(t, newcomerFiles)
	git := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		login, token, _ := r.BasicAuth()
		if login != "oauth2" || !accepts(provider, token) {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		used[token] = true
		mu.Unlock()
		backend.ServeHTTP(w, r)
	})}}
	git.Start()
	t.Cleanup(git.Close)
	provider.Set("s1", idp.User{Username: "ann-at-git"})
	provider.Issue(idp.Tokens{Lifetime: 20 * time.Second}) // the server refreshes them from 15 s before their end
	// The newcomer is logged in at the provider, and not connected.
	n.do("connect", navigate(n.s.URL+"/settings/account"), chromedp.Click("#connect-company"), chromedp.WaitVisible("input[name=login]"),
		chromedp.SendKeys("input[name=login]", "s1"), chromedp.SendKeys("input[name=password]", "x\r"), chromedp.WaitVisible("#git [data-git]"))
	n.do("disconnect", chromedp.Click("#git [data-git] button"), chromedp.WaitVisible("#connect-company"))

	n.follow()
	n.create()
	n.do("see why the clone failed", chromedp.WaitVisible("#git-connect"))
	n.screenshot("connect")
	n.click("connect", "#git-connect")
	n.write()
	n.expect(3)
	first := sent()
	n.s.until("Git sends a refreshed token", func() bool {
		n.user.expectShell(n.id, "cd $CODEHUB_FOLDER && git fetch -q && echo fetched", "fetched")
		return sent() > first
	})
}

// accepts reports whether a token is one of the provider's that is valid.
func accepts(p *idp.Provider, token string) bool {
	r, err := http.NewRequest(http.MethodGet, p.Issuer+"/api/v4/user", nil)
	if err != nil {
		return false
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// newcomer is a user, logged in, who has seen nothing of codehub but the link.
type newcomer struct {
	*browser
	s      *server
	user   *server
	readme string
	id     string // of the workspace, once it is created
	clicks int
	began  time.Time
	cursor time.Duration // until there is one
}

// arrive starts a server with a template for the repository, and a browser in which the newcomer is
// logged in. prepare changes the server before that, and returns another address of the browser.
func arrive(t *testing.T, repo string, prepare func(*server) string, settings ...string) *newcomer {
	t.Helper()
	dir := scratch(t)
	if err := os.WriteFile(filepath.Join(dir, "api.yaml"), []byte(newcomerTemplate), 0o644); err != nil {
		t.Fatal(err)
	}
	s := startQuick(t, append(settings, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_TEMPLATES_DIR="+dir)...)
	addresses := []string{s.URL}
	if prepare != nil {
		addresses = append(addresses, prepare(s))
	}
	var page string
	readme := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, page)
	}))
	address := "http://" + readme.Listener.Addr().String()
	const password = "a password of theirs"
	if _, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: "ann", Password: password}); err != nil {
		t.Fatal(err)
	}
	n := &newcomer{browser: newBrowserAt(t, append(addresses, address)), s: s, user: s.enterAs("ann", password), readme: address}
	n.loginAs(s.URL, "ann", password)
	// The badge is that of the page to which the link leads.
	n.do("see the badge", navigate(s.URL+"/new?repo="+url.QueryEscape(repo)+"&template=api"), until(`document.querySelector('#badge') !== null`))
	badge, err := chromedp.Run(n.ctx, chromedp.Evaluate[string](`document.querySelector('#badge').textContent`))
	if err != nil {
		t.Fatal(err)
	}
	parts := regexp.MustCompile(`^\[!\[(.+)\]\((.+)\)\]\((.+)\)$`).FindStringSubmatch(badge)
	if parts == nil {
		t.Fatalf("the badge is %q", badge)
	}
	page = fmt.Sprintf(`<!doctype html><title>api</title><h1>API</h1><p><a href="%s"><img alt="%s" src="%s"></a></p>`, html.EscapeString(parts[3]), html.EscapeString(parts[1]), html.EscapeString(parts[2]))
	readme.Start()
	t.Cleanup(readme.Close)
	return n
}

func (n *newcomer) click(what, selector string) {
	n.Helper()
	n.clicks++
	n.do(what, chromedp.WaitVisible(selector), until(fmt.Sprintf(`(s => s.color !== s.backgroundColor)(getComputedStyle(document.querySelector(%q)))`, selector)), chromedp.Click(selector))
}

// follow starts the clock, and follows the link in the README.
func (n *newcomer) follow() {
	n.Helper()
	n.do("read the README", navigate(n.readme), until(`document.querySelector('img').naturalWidth > 0`))
	n.screenshot("readme")
	n.began = time.Now()
	n.click("follow the link", "img")
	n.do("see the repository and the button without scrolling", until(`document.querySelector('#dialog-form button[type=submit]')?.getBoundingClientRect().bottom < innerHeight && document.querySelector('#f-repo').getBoundingClientRect().top > 0`))
	n.screenshot("link")
}

func (n *newcomer) create() {
	n.Helper()
	n.click("create the workspace", "#dialog-form button[type=submit]")
	n.s.until("the workspace is created", func() bool {
		list, err := n.user.api.List(n.Context(), codehub.Filter{})
		if err == nil && len(list) == 1 {
			n.id = list[0].ID
		}
		return n.id != ""
	})
}

// write types into the file that has the cursor, and stops the clock when the file has the text and
// the dependencies are installed.
func (n *newcomer) write() {
	n.Helper()
	n.workbench()
	n.do("see the folder and the README with the cursor", until(`['app.js', 'README.md'].every(name => [...document.querySelectorAll('.explorer-folders-view .monaco-list-row')].some(e => e.innerText.includes(name)))`),
		until(`document.querySelector('.tab.active')?.textContent.includes('README.md')`),
		until(`!!document.activeElement?.closest('.editor-instance .monaco-editor')`))
	n.cursor = time.Since(n.began)
	n.do("type", text("Mine. "), until(`[...document.querySelectorAll('.editor-instance .view-line')].some(e => e.innerText.replaceAll('\u00a0', ' ').includes('Mine. # API'))`))
}

// expect checks the clicks and the workspace, and logs the time.
func (n *newcomer) expect(clicks int) {
	n.Helper()
	var setup api.Setup
	n.s.until("the dependencies are installed", func() bool {
		var err error
		setup, err = n.user.api.Setup(n.Context(), n.id)
		return err == nil && len(setup.Steps) == 2 && setup.Steps[1].State == "done"
	})
	installed := time.Since(n.began)
	n.user.expectShell(n.id, "pwd; cd $CODEHUB_FOLDER && pwd && node app.js", "/home/coder\n/home/coder/project/api\nhello")
	n.s.until("the file is saved", func() bool { return strings.HasPrefix(n.user.shell(n.id, "cat project/api/README.md"), "Mine. # API") })
	n.screenshot("ide")
	if n.clicks != clicks || n.clicks > maxClicks {
		n.Errorf("%d clicks, want %d", n.clicks, clicks)
	}
	n.Logf("%d clicks; the cursor after %.1f s, the dependencies after %.1f s", n.clicks, n.cursor.Seconds(), installed.Seconds())
}

// listenOutside listens at a public address beyond this machine, which workspaces reach: in a
// network namespace that ends with the listener. Each of a test has another number.
func listenOutside(t *testing.T, number int) net.Listener {
	t.Helper()
	pid := os.Getpid()
	first := 4 * (2*(pid%30) + number)
	here, there, name := fmt.Sprintf("198.51.100.%d", first+1), fmt.Sprintf("198.51.100.%d", first+2), fmt.Sprintf("cle%d-%d", number, pid)
	ip := func(all ...string) error {
		for _, args := range all {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
		}
		return nil
	}
	var l net.Listener
	var err error
	thread, linked, done := make(chan int), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err = unix.Unshare(unix.CLONE_NEWNET)
		thread <- unix.Gettid()
		<-linked
		if err == nil {
			err = ip("address add "+there+"/30 dev inside", "link set inside up", "route add default via "+here)
		}
		if err == nil {
			l, err = net.Listen("tcp4", there+":0")
		}
	}()
	if tid := <-thread; err == nil {
		err = ip("link add "+name+" type veth peer name inside netns "+strconv.Itoa(tid), "address add "+here+"/30 dev "+name, "link set "+name+" up")
	}
	close(linked)
	<-done
	if err != nil {
		t.Fatalf("a network beyond this machine, which needs root: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}
