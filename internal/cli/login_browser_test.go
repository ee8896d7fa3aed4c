package cli

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// loginProcess is a running codehub login.
type loginProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	lines *bufio.Scanner
	env   []string
}

func startLogin(t *testing.T, args ...string) *loginProcess {
	t.Helper()
	p := &loginProcess{t: t, cmd: exec.CommandContext(t.Context(), "codehub", append([]string{"login"}, args...)...)}
	// There is no program that opens a browser.
	p.env = append(os.Environ(), "XDG_CONFIG_HOME="+t.TempDir(), "CODEHUB_SESSION_TOKEN=")
	p.cmd.Env = append(p.env, "PATH=/nonexistent")
	out, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	return p
}

// line returns the next line of output with this text in it.
func (p *loginProcess) line(with string) string {
	p.t.Helper()
	for p.lines.Scan() {
		if strings.Contains(p.lines.Text(), with) {
			return strings.TrimSpace(p.lines.Text())
		}
	}
	p.t.Fatalf("the output has no %q", with)
	return ""
}

// ended waits for the end, and returns the user that codehub whoami reports.
func (p *loginProcess) ended() (user string, err error) {
	for p.lines.Scan() {
	}
	if err := p.cmd.Wait(); err != nil {
		return "", err
	}
	whoami := exec.Command("codehub", "whoami")
	whoami.Env = p.env
	out, err := whoami.Output()
	return strings.TrimSpace(string(out)), err
}

func get(t *testing.T, address string) (int, string) {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestLoginByBrowser(t *testing.T) {
	t.Parallel()
	s := serveAPI(t)
	session, err := s.auth.Login(t.Context(), "ann", clientPassword, auth.Client{})
	if err != nil {
		t.Fatal(err)
	}
	p := startLogin(t, s.url, "--browser", "--expires", "12h")
	shown := p.line("-")
	if strings.Contains(shown, "/cli-login?") {
		t.Fatal("the program shows no code")
	}
	address, err := url.Parse(p.line("/cli-login?"))
	if err != nil {
		t.Fatal(err)
	}
	q := address.Query()
	if shown != api.LoginCode(q.Get("challenge")) {
		t.Errorf("shows the code %q, and the page %q", shown, api.LoginCode(q.Get("challenge")))
	}
	callback := "http://127.0.0.1:" + q.Get("port") + "/callback"
	// An answer with another state, as another page can send it, is none.
	if status, _ := get(t, callback+"?code=x&state=y"); status != http.StatusNotFound {
		t.Errorf("another state: %d", status)
	}
	code, err := s.auth.AllowBrowser(t.Context(), session.Caller, q.Get("challenge"), q.Get("name"), s.auth.ProgramExpiry(0))
	if err != nil {
		t.Fatal(err)
	}
	if _, text := get(t, callback+"?"+url.Values{"code": {code}, "state": {q.Get("state")}}.Encode()); !strings.Contains(text, "codehub is logged in") {
		t.Errorf("the browser shows %q", text)
	}
	if user, err := p.ended(); err != nil || user != "ann (admin)" {
		t.Errorf("logged in as %q, %v", user, err)
	}
	p = startLogin(t, s.url, "--browser")
	address, _ = url.Parse(p.line("/cli-login?"))
	get(t, "http://127.0.0.1:"+address.Query().Get("port")+"/callback?error=access_denied&state="+address.Query().Get("state"))
	if _, err := p.ended(); err == nil {
		t.Error("a refused login succeeded")
	}
}

func TestLoginByCode(t *testing.T) {
	t.Parallel()
	s := serveAPI(t)
	session, err := s.auth.Login(t.Context(), "ann", clientPassword, auth.Client{})
	if err != nil {
		t.Fatal(err)
	}
	answers, processes := []bool{true, false}, []*loginProcess{}
	names := map[bool][]string{true: {"-u", "ANN"}}
	codes := map[bool]string{}
	for _, allow := range answers {
		p := startLogin(t, append([]string{s.url, "--device"}, names[allow]...)...)
		p.line("/device and enter the code:")
		code := strings.ToLower(p.line("-"))
		pending, err := s.auth.Device(t.Context(), session.Caller, code)
		if err != nil || pending.Address != "127.0.0.1" || pending.Name == "" {
			t.Errorf("%+v, %v", pending, err)
		}
		if err := s.auth.AnswerDevice(t.Context(), session.Caller, code, allow); err != nil {
			t.Fatal(err)
		}
		processes, codes[allow] = append(processes, p), code
	}
	// Each asks again after some seconds.
	for i, allow := range answers {
		user, err := processes[i].ended()
		if allow && (err != nil || user != "ann (admin)") || !allow && err == nil {
			t.Errorf("allowed %v: logged in as %q, %v", allow, user, err)
		}
		if err := s.auth.AnswerDevice(t.Context(), session.Caller, codes[allow], true); workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("the code can be used again: %v", err)
		}
	}
}
