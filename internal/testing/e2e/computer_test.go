package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	chromium "codehub/internal/testing/harness/browser"
)

// A user on another computer gets the client from the server, logs in with the browser, and uses a
// workspace with it. It takes 15 s, for a server, a browser and a workspace.
func TestClientOnAnotherComputer(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	clients := scratch(t)
	version := packClient(t, clients)
	s := startModeQuick(t, siblings, "CODEHUB_CLIENT_DIR="+clients, "CODEHUB_DEFAULT_IMAGE="+env.slimImage)
	c := newComputer(t, s)

	c.login(s.URL, proc.AdminPassword)
	const line = `document.querySelector('#client-line')`
	c.do("open the page about this computer", navigate(s.URL+"/computer"), until(line+` !== null`))
	command := c.read(line + `.textContent`)
	c.screenshot("computer")
	// The user has no sudo here, and a folder for programs.
	command = strings.NewReplacer("sudo ", "", "/usr/local/bin", filepath.Join(c.home, "bin")).Replace(command)
	c.run("sh", "-c", command)
	if got := c.run("codehub", "version"); !strings.Contains(got, version) {
		t.Errorf("the client from the server is %q, not %s", got, version)
	}

	// The opener of pages on this computer writes down the address.
	opened := filepath.Join(c.home, "opened")
	c.write("bin/xdg-open", "#!/bin/sh\nprintf %s \"$1\" >"+opened+".part && mv "+opened+".part "+opened+"\n", 0o755)
	login, ended := c.start("codehub", "login", "--browser", s.URL)
	var address []byte
	harness.Eventually(t, "the client opens the browser", func() bool {
		var err error
		address, err = os.ReadFile(opened)
		return err == nil
	})
	c.do("allow the login", navigate(string(address)), chromedp.WaitVisible("#allow"))
	code := c.read(`document.querySelector('#program-code').textContent`)
	c.screenshot("allow")
	c.do("press the button", chromedp.Click("#allow"), until(`document.body.innerText.includes('codehub is logged in')`))
	if err := <-ended; err != nil {
		t.Fatalf("codehub login: %v: %s", err, login)
	}
	if shown := login.String(); code == "" || !strings.Contains(shown, code) || !strings.Contains(shown, "Logged in to "+s.URL+" as admin.") {
		t.Errorf("the page shows the code %q, and codehub login: %s", code, shown)
	}
	kept := filepath.Join(c.home, ".config", "codehub", "login.json")
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the login is kept in %v, %v", info, err)
	}

	c.run("codehub", "create", "demo", "--wait")
	if got := c.run("codehub", "ssh", "demo", "--", "echo hello; id -un"); got != "hello\ncoder\n" {
		t.Errorf("codehub ssh: %q", got)
	}
	content := strings.Repeat("content\n", 1<<15)
	c.write("file", content, 0o600)
	c.run("codehub", "cp", filepath.Join(c.home, "file"), "demo:copied")
	c.run("codehub", "cp", "demo:copied", filepath.Join(c.home, "back"))
	if back, err := os.ReadFile(filepath.Join(c.home, "back")); err != nil || string(back) != content {
		t.Errorf("a copied file came back with %d bytes, not %d: %v", len(back), len(content), err)
	}

	// A server in the workspace that answers one connection with a line.
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listen)
	c.run("codehub", "exec", "demo", "--", "sh", "-c", `exec setsid --fork perl -MIO::Socket::INET -e '
		$s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1:3000") or die; while ($c = $s->accept) { print $c "inside\n"; close $c }' </dev/null >/dev/null 2>&1`)
	forward, _ := c.start("codehub", "port-forward", "demo", port+":3000", "--address", "127.0.0.1")
	harness.Eventually(t, "the port is forwarded", func() bool { return strings.Contains(forward.String(), "leads to port") })
	harness.Eventually(t, "the forwarded port answers", func() bool {
		out, err := c.command("bash", "-c", "cat </dev/tcp/127.0.0.1/"+port).Output()
		return err == nil && string(out) == "inside\n"
	})
	if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		conn.Close()
		t.Error("the port is forwarded on the server's machine, too")
	}
	c.run("codehub", "logout")
	if _, err := os.Stat(kept); err == nil {
		t.Error("the login is still there after codehub logout")
	}
}

// packClient packs the client for this machine's system into a folder, with the version of the
// server, as a release does.
func packClient(t *testing.T, folder string) (version string) {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(env.binary, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	version = strings.TrimPrefix(strings.TrimSpace(string(out)), "codehub ")
	name := "codehub-cli_" + version + "_linux_" + runtime.GOARCH
	dir := filepath.Join(scratch(t), name)
	build := exec.Command("go", "build", "-ldflags", "-X main.version="+version, "-o", filepath.Join(dir, "codehub"), "./cmd/codehub-cli")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the client: %v: %s", err, out)
	}
	if out, err := exec.Command("tar", "-czf", filepath.Join(folder, name+".tar.gz"), "-C", filepath.Dir(dir), name).CombinedOutput(); err != nil {
		t.Fatalf("pack the client: %v: %s", err, out)
	}
	return version
}

// computer is a user's own computer: a network of its own from which the server is reached by
// https alone, a browser, a home folder, and the authority that signed the server's certificate.
type computer struct {
	*browser
	home, hosts, authority string
}

func newComputer(t *testing.T, s *server) *computer {
	t.Helper()
	c := &computer{browser: s.browser(t), home: scratch(t), authority: s.certificate.cert}
	c.hosts = filepath.Join(c.home, "hosts")
	c.write("hosts", "127.0.0.1 localhost code.example.com\n", 0o644)
	if err := os.Mkdir(filepath.Join(c.home, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

// write writes a file of the home folder.
func (c *computer) write(name, content string, mode os.FileMode) {
	c.Helper()
	if err := os.WriteFile(filepath.Join(c.home, name), []byte(content), mode); err != nil {
		c.Fatal(err)
	}
}

// read returns the text that a JavaScript expression yields.
func (c *computer) read(expression string) string {
	c.Helper()
	text, err := chromedp.Run(c.ctx, chromedp.Evaluate[string](expression))
	if err != nil {
		c.Fatalf("%s: %v", expression, err)
	}
	return strings.TrimSpace(text)
}

// command is a command on the computer, which knows the server by its own list of hosts.
func (c *computer) command(args ...string) *exec.Cmd {
	script := `mount --bind ` + c.hosts + ` /etc/hosts && exec "$@"`
	cmd := exec.CommandContext(c.Context(), "unshare", append([]string{"--mount", "sh", "-c", script, "sh"}, args...)...)
	chromium.Beside(c.ctx, cmd)
	cmd.Env = []string{"HOME=" + c.home, "PATH=" + filepath.Join(c.home, "bin") + ":" + os.Getenv("PATH"), "SSL_CERT_FILE=" + c.authority, "CURL_CA_BUNDLE=" + c.authority}
	return cmd
}

// run runs a command to its end and returns what it prints.
func (c *computer) run(args ...string) string {
	c.Helper()
	cmd := c.command(args...)
	var failed bytes.Buffer
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		c.Fatalf("%v: %v: %s%s", args, err, out, &failed)
	}
	return string(out)
}

// start starts a command and returns what it prints, and its end.
func (c *computer) start(args ...string) (printed *harness.Log, ended <-chan error) {
	c.Helper()
	printed = &harness.Log{}
	cmd := c.command(args...)
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	return printed, done
}
