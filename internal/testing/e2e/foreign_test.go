package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/api"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// The tools that a workspace has whatever its image.
const (
	ideFolder = "/opt/codehub-ide"
	busybox   = ideFolder + "/bin/busybox"
)

// foreignImage is an image that knows nothing of codehub: a stage of
// testdata/foreign/Dockerfile.
type foreignImage struct {
	stage string
	shell string // what SHELL has to be
	lang  string // what LANG has to be
	tools bool   // it has Debian's id and getent
	lib   bool   // it has a glibc
	hello string // a program that prints hello-42, if it has one
}

const ideSh = ideFolder + "/bin/sh"

var foreignImages = []foreignImage{
	{stage: "debian", shell: "/bin/bash", lang: "C.UTF-8", tools: true, lib: true},
	{stage: "node", shell: "/bin/bash", lang: "C", tools: true, lib: true},
	{stage: "nobash", shell: "/bin/sh", lang: "C.UTF-8", tools: true, lib: true},
	{stage: "coder", shell: "/bin/bash", lang: "C.UTF-8", tools: true, lib: true},
	{stage: "static", shell: ideSh, lang: "C.UTF-8", hello: "/hello"},
	{stage: "musl", shell: "/bin/sh", lang: "C.UTF-8", hello: "/bin/hello"},
}

// The hostile images are in a test of their own, where hostileImage's workspace is the
// first.
var (
	hostileImage = foreignImage{stage: "hostile", shell: "/bin/bash", lang: "C.UTF-8", tools: true, lib: true}
	linksImage   = foreignImage{stage: "links"}
)

func (f foreignImage) ref() string { return "codehub/foreign:" + f.stage }

var foreignBuild sync.Once

// buildForeignImages builds the images unless the present ones are current.
func buildForeignImages(t *testing.T) {
	t.Helper()
	foreignBuild.Do(func() {
		args := []string{"codehub/foreign", env.workspaceImage}
		for _, image := range append(slices.Clone(foreignImages), hostileImage, linksImage) {
			args = append(args, image.stage)
		}
		if out, err := exec.CommandContext(t.Context(), "testdata/foreign/build.sh", args...).CombinedOutput(); err != nil {
			t.Fatalf("build the images: %v: %s", err, out)
		}
	})
	if _, err := env.docker.ImageInspect(t.Context(), hostileImage.ref()); err != nil {
		t.Fatal(err)
	}
}

// foreignWorkspace is a running workspace on one of the images. Its name is the stage.
type foreignWorkspace struct {
	*server
	image foreignImage
	id    string
	ssh   *sshClient
	b     *bucket
}

// on returns the workspace for use in a subtest.
func (w *foreignWorkspace) on(t *testing.T) *foreignWorkspace {
	s := *w.server
	s.test = test{t}
	c := *w.ssh
	c.server = &s
	return &foreignWorkspace{&s, w.image, w.id, &c, w.b}
}

// foreignChecks are what holds for a workspace on any image.
var foreignChecks = []struct {
	name string
	run  func(*foreignWorkspace)
}{
	{"IDE", (*foreignWorkspace).checkIDE},
	{"user", (*foreignWorkspace).checkUser},
	{"privileges", (*foreignWorkspace).checkPrivileges},
	{"environment", (*foreignWorkspace).checkEnvironment},
	{"command", (*foreignWorkspace).checkCommand},
	{"terminal", (*foreignWorkspace).checkTerminal},
	{"mounts", (*foreignWorkspace).checkMounts},
	{"port", (*foreignWorkspace).checkPort},
	{"SSH", (*foreignWorkspace).checkSSH},
	{"archive", (*foreignWorkspace).checkArchive},
}

// foreignServer starts a server for workspaces on these images.
func foreignServer(t *testing.T, images ...foreignImage) (*server, *sshClient, *bucket) {
	t.Helper()
	buildForeignImages(t)
	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	b := folderBucket(t)
	s := startQuick(t, append(b.settings, "CODEHUB_SSH_LISTEN="+listen, "CODEHUB_DELETE_GRACE=0s", "MAX_RUNNING_PER_USER=20")...)
	var names []string
	for _, image := range images {
		names = append(names, image.stage)
	}
	return s, s.sshClient(listen, names...), b
}

// start creates a workspace on the image and waits until it runs.
func (f foreignImage) start(s *server, c *sshClient, b *bucket) *foreignWorkspace {
	s.Helper()
	w := &foreignWorkspace{s, f, s.create(api.CreateWorkspace{Name: f.stage, ImageRef: f.ref()}), c, b}
	s.awaitPhase(w.id, "RUNNING")
	return w
}

// A workspace works the same on images that know nothing of codehub: of root and of
// another user, without bash, with a user of the same name, with one program only, with
// musl.
func TestForeignImages(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s, c, b := foreignServer(t, foreignImages...)
	for _, image := range foreignImages {
		t.Run(image.stage, func(t *testing.T) {
			t.Parallel()
			server := *s
			server.test = test{t}
			w := image.start(&server, c, b)
			w.check(t)
			if image.stage == "static" {
				w.checkBrowser(t)
			}
			w.discard(w.id) // removal of its archives takes a minute
		})
	}
}

// check runs all checks one after another: the last ones stop the workspace.
func (w *foreignWorkspace) check(t *testing.T) {
	for _, check := range foreignChecks {
		t.Run(check.name, func(t *testing.T) { check.run(w.on(t)) })
	}
}

// exec runs a command by the agent and returns its output, and its exit status.
func (w *foreignWorkspace) exec(command api.Exec, stdin string) (string, int) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 2*harness.Patience)
	defer cancel()
	x, err := w.api.Exec(ctx, w.id, command)
	if err != nil {
		w.Fatal(err)
	}
	go func() { _ = x.Stdin(ctx, strings.NewReader(stdin)) }()
	var out bytes.Buffer
	code, err := x.Run(ctx, &out, &out, nil)
	if err != nil {
		w.Fatalf("%v: %v", command, err)
	}
	return out.String(), code
}

// run runs a program by the agent, which must succeed.
func (w *foreignWorkspace) run(args ...string) string {
	w.Helper()
	out, code := w.exec(api.Exec{Args: args}, "")
	if code != 0 {
		w.Fatalf("%v: status %d: %s", args, code, out)
	}
	return out
}

// script runs a script with the shell and the tools of the IDE.
func (w *foreignWorkspace) script(text string) string {
	w.Helper()
	return w.run(busybox, "sh", "-c", text)
}

// The IDE's page comes through the proxy, and the image's own command was not run.
func (w *foreignWorkspace) checkIDE() {
	for path, want := range map[string]string{"/healthz": `"status"`, "/?folder=/home/coder/project": "vscode-workbench-web-configuration"} {
		if status, body := w.ide(http.MethodGet, w.id, path, ""); status != 200 || !strings.Contains(body, want) {
			w.Errorf("%s: %d %.300s", path, status, body)
		}
	}
	if got, want := w.script(`tr '\0' ' ' < /proc/1/cmdline`), "/opt/codehub/codehub agent -- "+ideFolder+"/start "; got != want {
		w.Errorf("the first process is %q, want %q", got, want)
	}
}

// uid is the workspace's uid on the host, which is the one in it.
func (w *foreignWorkspace) uid() string {
	w.Helper()
	info, err := os.Lstat(w.homeFolder(w.id))
	if err != nil {
		w.Fatal(err)
	}
	uid := info.Sys().(*syscall.Stat_t).Uid
	if uid < firstUID {
		w.Fatalf("the home belongs to %d", uid)
	}
	return fmt.Sprint(uid)
}

// Commands run as coder, with the workspace's uid, a home that is writable, and a folder for temporary
// files.
func (w *foreignWorkspace) checkUser() {
	uid := w.uid()
	if got := w.script("id -u; id -g; id -G; whoami; echo ~coder; pwd"); got != uid+"\n"+uid+"\n"+uid+"\ncoder\n/home/coder\n/home/coder\n" {
		w.Errorf("the user is %q", got)
	}
	if w.image.tools {
		for command, want := range map[string]string{
			"/usr/bin/id -un": "coder", "/usr/bin/id -gn": "coder", "/usr/bin/id -G": uid, "/usr/bin/stat -c %U:%u:%G /home/coder": "coder:" + uid + ":coder",
			"/usr/bin/getent passwd " + uid: "coder:x:" + uid + ":" + uid + ":coder:/home/coder:" + w.image.shell,
			"/usr/bin/getent passwd coder":  "coder:x:" + uid + ":" + uid + ":coder:/home/coder:" + w.image.shell,
		} {
			if got := strings.TrimSpace(w.run(strings.Fields(command)...)); got != want {
				w.Errorf("%s: %q, want %q", command, got, want)
			}
		}
	}
	if got := w.script(`stat -c '%u:%g' ~ ~/project; stat -c %a /tmp; echo x > /tmp/x && rm /tmp/x && echo x > ~/x && rm ~/x && touch /x 2> /dev/null || echo refused`); got != uid+":"+uid+"\n"+uid+":"+uid+"\n1777\nrefused\n" {
		w.Errorf("the folders: %q", got)
	}
}

// No process has a capability, nor can get one.
func (w *foreignWorkspace) checkPrivileges() {
	out := w.script(`for file in /proc/[0-9]*/status /proc/self/status; do cat $file 2> /dev/null; done`)
	uid := w.uid()
	ids := strings.Join([]string{uid, uid, uid, uid}, "\t")
	want := map[string]string{
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2", "Uid": ids, "Gid": ids,
	}
	seen := map[string]int{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		seen[name]++
		if expected, ok := want[name]; ok && value != expected {
			w.Errorf("a process has %s %q", name, value)
		}
		if name == "Groups" && value != "" && value != uid {
			w.Errorf("a process is in the groups %s", value)
		}
	}
	for name := range want {
		if seen[name] < 3 { // the agent, the IDE, the command
			w.Errorf("%s of %d processes was read", name, seen[name])
		}
	}
}

// The image's variables hold, for commands and for the IDE, but for those of its user.
func (w *foreignWorkspace) checkEnvironment() {
	of := map[string]string{
		"a command": w.run(busybox, "env"),
		"the IDE":   w.script(`for p in /proc/[0-9]*; do case $(tr '\0' ' ' < $p/cmdline) in "` + ideFolder + `/lib/node ` + ideFolder + `/start "*) tr '\0' '\n' < $p/environ;; esac; done`),
	}
	for who, variables := range of {
		for _, want := range []string{"FOO=bar", "HOME=/home/coder", "USER=coder", "SHELL=" + w.image.shell, "LANG=" + w.image.lang, "CODEHUB_WORKSPACE_NAME=" + w.image.stage} {
			if !slices.Contains(strings.Split(variables, "\n"), want) {
				w.Errorf("%s has no %s:\n%s", who, want, variables)
			}
		}
	}
	if strings.Contains(of["a command"], "HASHED_PASSWORD") {
		w.Error("a command has the workspace's secret")
	}
	if w.run(busybox, "test", "-x", w.image.shell) != "" {
		w.Errorf("%s does not exist", w.image.shell)
	}
}

// A command line runs with the user's shell, and the image's own programs run.
func (w *foreignWorkspace) checkCommand() {
	if out, code := w.exec(api.Exec{Shell: "echo $0-$((6 * 7)); read line; echo $line; exit 3"}, "typed\n"); out != filepath.Base(w.image.shell)+"-42\ntyped\n" || code != 3 {
		w.Errorf("%q %d", out, code)
	}
	if w.image.hello != "" {
		if got := w.run(w.image.hello); got != "hello-42\n" {
			w.Errorf("%s printed %q", w.image.hello, got)
		}
	}
	if got := w.run(busybox, "sh", "-c", `ls -d /lib*/*/libc.so* /lib*/libc.so.6 /usr/lib*/*/libc.so* 2> /dev/null; true`) != ""; got != w.image.lib {
		w.Errorf("the image has a glibc: %v", got)
	}
}

// The login shell opens on a terminal.
func (w *foreignWorkspace) checkTerminal() {
	out, code := w.exec(api.Exec{Terminal: &api.ExecTerminal{Name: "xterm", Rows: 20, Cols: 70}},
		"echo \"in $SHELL at $PWD on $TERM\"; "+busybox+" stty size; "+busybox+" tty; exit 7\n")
	for _, want := range []string{"in " + w.image.shell + " at /home/coder on xterm\r\n", "20 70\r\n", "/dev/pts/"} {
		if !strings.Contains(out, want) {
			w.Errorf("the terminal shows no %q: %q", want, out)
		}
	}
	if code != 7 {
		w.Errorf("the shell ended with %d", code)
	}
}

// The agent and the IDE are codehub's, whatever the image has in their places, and no process
// can change them.
func (w *foreignWorkspace) checkMounts() {
	for _, dir := range []string{"/opt/codehub", ideFolder} {
		if got := w.script(`grep " ` + dir + ` " /proc/mounts | cut -d ' ' -f 4 | cut -d , -f 1`); got != "ro\n" {
			w.Errorf("%s is mounted %q", dir, got)
		}
		if out, code := w.exec(api.Exec{Args: []string{busybox, "touch", dir + "/x"}}, ""); code == 0 || !strings.Contains(out, "Read-only file system") {
			w.Errorf("write to %s: %q %d", dir, out, code)
		}
	}
	executable, err := os.ReadFile(env.binary + "-agent")
	if err != nil {
		w.Fatal(err)
	}
	want := fmt.Sprintf("%x  /opt/codehub/codehub\n", sha256.Sum256(executable))
	if got := w.run(busybox, "sha256sum", "/opt/codehub/codehub"); got != want {
		w.Errorf("the agent has the digest %q, want %q", got, want)
	}
	if len(executable) > 16<<20 {
		w.Errorf("the agent has %d bytes, more than 16 MiB: it holds what only the server needs", len(executable))
	}
}

// A port of 127.0.0.1 is listed, opened through the proxy, and forwarded.
func (w *foreignWorkspace) checkPort() {
	w.script("mkdir -p /tmp/www && echo served > /tmp/www/page.txt && " + busybox + " httpd -p 127.0.0.1:3000 -h /tmp/www")
	var list api.PortList
	harness.Eventually(w.TB, "the port is listed", func() bool {
		var err error
		list, err = w.api.Ports(w.Context(), w.id)
		return err == nil && slices.ContainsFunc(list.Ports, func(p api.Port) bool { return p.Port == 3000 && p.Listening && p.Local && p.Process != "" })
	})
	if slices.ContainsFunc(list.Ports, func(p api.Port) bool { return p.Listening && p.Port != 3000 }) {
		w.Errorf("other ports are listed: %+v", list.Ports)
	}
	conn, err := w.api.ConnectPort(w.Context(), w.id, 3000)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /page.txt HTTP/1.0\r\n\r\n")
	if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), "served\n") {
		w.Errorf("forwarded: %q, %v", got, err)
	}
	last, resp, body := w.visitor("admin").follow(w.portOf(w.id, "3000")+"/page.txt", "")
	if resp == nil || resp.StatusCode != 200 || body != "served\n" {
		w.Errorf("at %s: %q", last, body)
	}
}

// OpenSSH's clients run commands and copy files.
func (w *foreignWorkspace) checkSSH() {
	c, host := w.ssh, w.image.stage
	if out, errs, status := c.run("ssh", "-F", c.options, host, "echo $SHELL $HOME; exit 3"); out != w.image.shell+" /home/coder\n" || status != 3 {
		w.Errorf("ssh: %q %q %d", out, errs, status)
	}
	file := filepath.Join(w.TempDir(), "file")
	if err := os.WriteFile(file, bytes.Repeat([]byte("content\n"), 1<<14), 0o640); err != nil {
		w.Fatal(err)
	}
	batch := filepath.Join(w.TempDir(), "batch")
	if err := os.WriteFile(batch, []byte("put -p "+file+" sent\nchmod 750 sent\nls -l sent\nget sent "+file+"2\n"), 0o600); err != nil {
		w.Fatal(err)
	}
	out, errs, status := c.run("sftp", "-F", c.options, "-b", batch, host)
	if status != 0 || !strings.Contains(out, "-rwxr-x---") {
		w.Fatalf("sftp: %d %q %q", status, out, errs)
	}
	one, _ := os.ReadFile(file)
	if two, err := os.ReadFile(file + "2"); err != nil || !bytes.Equal(one, two) {
		w.Errorf("sftp copied %d bytes of %d: %v", len(two), len(one), err)
	}
}

// An archived and restored home is the same, and is used again. Files in it keep owners
// that the image does not know.
func (w *foreignWorkspace) checkArchive() {
	w.script("mkdir -m 750 ~/kept && echo content > ~/kept/file && chmod 4640 ~/kept/file && ln -s file ~/kept/link && rm -rf ~/.cache ~/.local/share/code-server/logs")
	w.setDesired(w.id, "STANDBY")
	w.awaitPhase(w.id, "STANDBY")
	root := w.homeFolder(w.id)
	foreign := filepath.Join(root, "kept", "foreign")
	if err := os.WriteFile(foreign, []byte("of another user"), 0o604); err != nil {
		w.Fatal(err)
	}
	if err := os.Lchown(foreign, 1234, 4321); err != nil {
		w.Fatal(err)
	}
	home := w.readHome(w.id)
	w.setDesired(w.id, "ARCHIVED")
	w.awaitArchived(w.b, w.id, home)
	w.setDesired(w.id, "STANDBY")
	w.awaitRestored(w.id, home)
	w.setDesired(w.id, "RUNNING")
	w.awaitPhase(w.id, "RUNNING")
	if got := w.script(`cd ~/kept && stat -c '%u:%g %a %F %n' . file link foreign && cat link`); got !=
		strings.ReplaceAll("U:U 750 directory .\nU:U 4640 regular file file\nU:U 777 symbolic link link\n", "U", w.uid())+"1234:4321 604 regular file foreign\ncontent\n" {
		w.Errorf("after the restore: %q", got)
	}
}

// In a browser the IDE opens a terminal with the user's shell.
func (w *foreignWorkspace) checkBrowser(t *testing.T) {
	editIDESettings(t, "/home/coder", "docker", "exec", workspace.ID(w.id).DockerName(), busybox)
	b := w.browser(t)
	b.login(w.URL, proc.AdminPassword)
	b.do("open it", navigate(w.URL+"/w/"+w.id+"/"))
	b.terminal()
	b.shell("echo $((6 * 7))-$SHELL", "42-"+w.image.shell)
	b.shell(w.image.hello, "hello-42")
	w.checkTerminalPage(b)
}

// The terminal's page starts the stopped workspace when it is opened, and by Start when the
// workspace stops later. It says what it waits for.
func (w *foreignWorkspace) checkTerminalPage(b *browser) {
	b.do("leave the IDE", navigate(w.URL+"/workspaces/"+w.id))
	w.setDesired(w.id, "STANDBY")
	w.awaitPhase(w.id, "STANDBY")
	recordTexts := page.AddScriptToEvaluateOnNewDocumentParams{Source: `window.texts = new Set()
		new MutationObserver(() => texts.add(document.getElementById('terminal-status')?.textContent)).observe(document, {childList: true, characterData: true, subtree: true})`}
	if _, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, recordTexts); err != nil {
		w.Fatal(err)
	}
	shows := func(pattern string) chromedp.Action[chromedp.Void] {
		return until(fmt.Sprintf(`/%s/.test([...document.querySelectorAll('#terminal .xterm-rows > div')].map(e => e.textContent.replaceAll('\u00a0', ' ').trimEnd()).join('\n').trimEnd())`, pattern))
	}
	connected := until(`document.getElementById('terminal-status').textContent === '' && Boolean(document.activeElement?.closest('#terminal'))`)
	b.do("open the terminal", navigate(w.URL+"/workspaces/"+w.id+"/terminal"), connected, until(`texts.has('Waiting for the workspace: Starting')`), shows(`~ \$$`))
	b.do("run a program", text(w.image.hello), pressEnter(), shows(`\nhello-42\n`))
	b.screenshot("terminal")

	w.setDesired(w.id, "STANDBY")
	b.do("see that it has stopped", until(`document.getElementById('terminal-status').textContent === 'The workspace is not running: Stopped' &&
		document.getElementById('terminal-again').textContent === 'Start'`))
	b.screenshot("stopped")
	b.do("start it", until(`(texts.clear(), true)`), chromedp.Click("#terminal-again"), until(`texts.has('Waiting for the workspace: Starting')`), connected)
	b.do("run a command", text("echo started-$((6 * 7)); "+w.image.hello), pressEnter(), shows(`\nstarted-42\nhello-42\n~ \$`))
}

// A hostile image has files in the places of the agent and of the IDE, users that
// contradict codehub's, variables that make programs load its code, and is the first
// that a server starts. Its workspace works as any other, and it changes nothing outside
// its own.
func TestHostileImage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	plain := foreignImages[0]
	s, c, b := foreignServer(t, hostileImage, plain)
	w := hostileImage.start(s, c, b)
	before := w.toolVolumes()
	w.check(t)
	pwn := w.on(t)
	if got := pwn.script(`cat /etc/hostile; readlink /etc/passwd; id -u; /evil/setuid -u; ls /home/coder /tmp /opt/codehub ` + ideFolder); strings.Contains(got, "pwned") ||
		!strings.HasPrefix(got, "coder:x:0:0::/evil:/evil/pwn\nroot:x:1000:1000::/evil:/evil/pwn\n"+w.uid()+"\n"+w.uid()+"\n") {
		t.Errorf("the hostile image shows: %s", got)
	}
	// Its code does run in its own workspace, so that the checks have met it.
	pwn.run("/bin/bash", "-c", "true")
	if got := pwn.script("ls /tmp /home/coder"); !strings.Contains(got, "preloaded") {
		t.Errorf("the image's variables do not hold: %s", got)
	}

	links := s.create(api.CreateWorkspace{Name: "links", ImageRef: linksImage.ref()})
	ended := s.await(links, "RUNNING or ERROR", func(w api.Workspace) bool {
		return w.Operation == "NONE" && (w.Phase == "RUNNING" || w.Phase == "ERROR")
	})
	t.Logf("the workspace with links is %s: %s", ended.Phase, str(ended.ErrorMessage))

	other := plain.start(s, c, b)
	if got := other.script(`ls -a / /tmp /home/coder; env`); strings.Contains(got, "pwned") || strings.Contains(got, "preloaded") || strings.Contains(got, "required") ||
		strings.Contains(got, "evil") || strings.Contains(got, "planted") {
		t.Errorf("another workspace has traces of the hostile image: %s", got)
	}
	other.on(t).checkIDE()
	other.on(t).checkMounts()
	after := s.toolVolumes()
	if len(before) != 2 || len(after) != len(before) {
		t.Errorf("there were %d volumes, and are %d", len(before), len(after))
	}
	for name, content := range before {
		compareHomes(t, "the volume "+name, archivetest.WithoutAtimes(content), archivetest.WithoutAtimes(after[name]))
	}
	executable, err := os.ReadFile(env.binary + "-agent")
	if err != nil {
		t.Fatal(err)
	}
	if got := before["agent"]["./codehub"].SHA256; got != digest(string(executable)) {
		t.Errorf("the agent's digest is %q", got)
	}
	if diff := ideImageDiff(t, before); diff != "" {
		t.Errorf("the IDE differs from its image: %s", diff)
	}
}

// toolVolumes returns the content of the volumes with the agent and the IDE.
func (s *server) toolVolumes() map[string]homeState {
	s.Helper()
	list, err := s.docker.VolumeList(s.Context(), client.VolumeListOptions{Filters: client.Filters{}.Add("label", proc.Label(s.Installation()))})
	if err != nil {
		s.Fatal(err)
	}
	out := map[string]homeState{}
	for _, v := range list.Items {
		if role := v.Labels["codehub.role"]; role == "agent" || role == "ide" {
			out[role] = snapshot(s.TB, v.Mountpoint)
		}
	}
	return out
}

// ideImageDiff compares the volume of the IDE with the IDE's image, and returns the first
// difference.
func ideImageDiff(t *testing.T, volumes map[string]homeState) string {
	t.Helper()
	made, err := env.docker.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: "codehub/ide:latest", Cmd: []string{"never-started"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := env.docker.ContainerRemove(context.Background(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Error(err)
		}
	}()
	content, err := env.docker.CopyFromContainer(t.Context(), made.ID, client.CopyFromContainerOptions{SourcePath: ideFolder})
	if err != nil {
		t.Fatal(err)
	}
	defer content.Content.Close()
	got := volumes["ide"]
	entries := map[string]bool{"./.complete": true, "./.lock": true}
	for tr := tar.NewReader(content.Content); ; {
		header, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		name := "." + strings.TrimSuffix(strings.TrimPrefix(header.Name, path.Base(ideFolder)), "/")
		entries[name] = true
		sum := sha256.New()
		if _, err := io.Copy(sum, tr); err != nil {
			t.Fatal(err)
		}
		state, ok := got[name]
		switch {
		case !ok:
			return "no " + name
		case state.UID != 0 || state.GID != 0 || state.Mode&unix.S_IFMT != unix.S_IFLNK && state.Mode&0o7022 != 0:
			return fmt.Sprintf("%s belongs to %d:%d with mode %o", name, state.UID, state.GID, state.Mode)
		case header.Typeflag == tar.TypeSymlink && state.Link != header.Linkname, header.Typeflag == tar.TypeReg && state.SHA256 != hex.EncodeToString(sum.Sum(nil)):
			return name + " has other content"
		}
	}
	for name := range got {
		if name != "." && !entries[name] {
			return "there is " + name
		}
	}
	return ""
}
