// Package idp runs an OpenID provider for tests: the npm package oidc-provider, which
// scripts/setup.sh installs.
package idp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/testing/harness"
)

// The client that codehub is for the provider.
const (
	ClientID     = "codehub"
	ClientSecret = "a secret of the client at the provider"
)

// User is a user of the provider.
type User struct {
	Username string   `json:"preferred_username,omitempty"`
	Email    string   `json:"email,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	Roles    []string `json:"roles,omitempty"` // as Entra ID names app roles
	Domain   string   `json:"hd,omitempty"`    // as Google names the domain of an account
	Disabled bool     `json:"disabled,omitempty"`
}

// Options change a provider.
type Options struct {
	RedirectURI string
	LogoutURI   string // for back-channel logout
	// InIDToken has the provider put all claims into ID tokens. Otherwise most are only
	// at its UserInfo endpoint.
	InIDToken bool
	// AuthMethod is how the client authenticates at the token endpoint; empty: client_secret_basic.
	AuthMethod string
}

// Provider is a running provider.
type Provider struct {
	Issuer string

	t     testing.TB
	mu    sync.Mutex
	users map[string]User
}

// Start runs a provider until the test ends.
func Start(t testing.TB, o Options) *Provider {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "internal", "testing", "harness", "idp", "testdata")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "oidc-provider")); err != nil {
		t.Fatalf("no OpenID provider for tests: run scripts/setup.sh check (%v)", err)
	}
	config, err := json.Marshal(map[string]any{
		"client_id": ClientID, "client_secret": ClientSecret, "redirect_uris": []string{o.RedirectURI},
		"backchannel_logout_uri": o.LogoutURI, "claims_in_id_token": o.InIDToken,
		"auth_method": o.AuthMethod,
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "provider.mjs", string(config))
	cmd.Dir = dir
	log := &harness.Log{}
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the OpenID provider: %v", err)
	}
	lines := bufio.NewScanner(out)
	var rest sync.WaitGroup
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		rest.Wait()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the OpenID provider logged:\n%s", log)
		}
	})
	p := &Provider{t: t, users: map[string]User{}}
	tooLate := time.AfterFunc(harness.Patience, func() { _ = cmd.Process.Kill() }) // which ends the lines
	defer tooLate.Stop()
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "http://") {
			p.Issuer = lines.Text()
			break
		}
	}
	if p.Issuer == "" {
		t.Fatalf("the OpenID provider ended, or did not start within %v:\n%s", harness.Patience, log)
	}
	rest.Go(func() { _, _ = io.Copy(io.Discard, out) })
	return p
}

// control changes the provider and returns how many requests for each path it has got.
func (p *Provider) control(change map[string]any) (requests map[string]int) {
	p.t.Helper()
	b, err := json.Marshal(change)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.Post(p.Issuer+"/control", "application/json", bytes.NewReader(b))
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&requests); err != nil {
		p.t.Fatal(err)
	}
	return requests
}

// Set adds or replaces a user, by subject.
func (p *Provider) Set(subject string, u User) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users[subject] = u
	p.control(map[string]any{"users": p.users})
}

// Down has the provider answer 503 to every request.
func (p *Provider) Down(down bool) {
	p.t.Helper()
	p.control(map[string]any{"down": down})
}

// AnswerAs has the provider name another issuer in its answers to browsers; empty: itself.
func (p *Provider) AnswerAs(issuer string) {
	p.t.Helper()
	p.control(map[string]any{"answer": issuer})
}

// Tokens is how the provider answers at /oauth/token, where it is like GitLab.
type Tokens struct {
	Lifetime time.Duration // of access tokens; 0: a minute
	Delay    time.Duration // before it answers
	Lose     int           // how many answers do not arrive, though the provider has issued the tokens
	Keep     bool          // a refresh token can be used again
}

// Issue changes how the provider answers at /oauth/token.
func (p *Provider) Issue(t Tokens) {
	p.t.Helper()
	p.control(map[string]any{"tokens": map[string]any{"lifetime": t.Lifetime.Seconds(), "delay": t.Delay.Seconds(), "lose": t.Lose, "keep_refresh": t.Keep}})
}

// Requests returns how many requests for a path the provider has got.
func (p *Provider) Requests(path string) int {
	p.t.Helper()
	return p.control(map[string]any{})[path]
}

// Browser is a browser without scripts that logs in at providers and follows redirects.
type Browser struct {
	t testing.TB
	*http.Client
}

// NewBrowser returns a browser with no cookies.
func NewBrowser(t testing.TB) *Browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Browser{t, &http.Client{Jar: jar, Timeout: 30 * time.Second}}
}

// Page is an answer that was read in full.
type Page struct {
	*http.Response
	Text string
}

// Open opens an address and follows redirects while follow accepts the next address; nil:
// all.
func (b *Browser) Open(address string, follow func(*url.URL) bool) Page {
	b.t.Helper()
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.send(r, follow)
}

// Post sends a form.
func (b *Browser) Post(address string, form url.Values, follow func(*url.URL) bool) Page {
	b.t.Helper()
	r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return b.send(r, follow)
}

func (b *Browser) send(r *http.Request, follow func(*url.URL) bool) Page {
	b.t.Helper()
	c := *b.Client
	c.CheckRedirect = func(next *http.Request, via []*http.Request) error {
		if follow != nil && !follow(next.URL) {
			return http.ErrUseLastResponse
		}
		if len(via) > 20 {
			return fmt.Errorf("too many redirects")
		}
		return nil
	}
	resp, err := c.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return Page{resp, string(text)}
}

var action = regexp.MustCompile(`action="([^"]+)"`)

// LogIn submits a provider's login form as a subject, if that is what the page is, and a
// question for consent after it, and returns the page that follows.
func (b *Browser) LogIn(page Page, subject string, follow func(*url.URL) bool) Page {
	b.t.Helper()
	page = b.answer(page, url.Values{"prompt": {"login"}, "login": {subject}, "password": {"x"}}, follow)
	return b.answer(page, url.Values{"prompt": {"consent"}}, follow)
}

// answer submits a provider's form for a prompt, if that is what the page is.
func (b *Browser) answer(page Page, with url.Values, follow func(*url.URL) bool) Page {
	b.t.Helper()
	form := action.FindStringSubmatch(page.Text)
	if form == nil || !strings.Contains(page.Text, `value="`+with.Get("prompt")+`"`) {
		return page
	}
	to, err := page.Request.URL.Parse(form[1])
	if err != nil {
		b.t.Fatal(err)
	}
	return b.Post(to.String(), with, follow)
}
