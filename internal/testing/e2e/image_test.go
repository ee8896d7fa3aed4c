package e2e

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// In the default image projects in Go, Python, Node and C are cloned, built, tested,
// debugged, rebased and pushed, without a network: see testdata/afternoon. The IDE debugs the
// one in Node.
func TestAfternoonOfWork(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "afternoon"})
	s.awaitPhase(id, "RUNNING")
	var files bytes.Buffer
	tw := tar.NewWriter(&files)
	if err := tw.AddFS(os.DirFS("testdata/afternoon")); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	in := workspaceShell{s, id}
	in.run(&files, "mkdir ~/afternoon && tar -x -C ~/afternoon")
	out := in.run(nil, "~/afternoon/run.sh")
	for _, language := range []string{"go", "python", "node", "c"} {
		if !strings.Contains(out, "done: "+language) {
			t.Errorf("the work in %s is not done:\n%s", language, out)
		}
	}
	in.debugNode("/home/coder/afternoon/work/node")
	s.remove(id)
}

// debugNode stops in the loop of the project with the IDE's debugger and reads values there.
func (w workspaceShell) debugNode(folder string) {
	w.Helper()
	t := w.TB.(*testing.T)
	prepareIDE(t, w.id)
	w.run(strings.NewReader(`{"version": "0.2.0", "configurations": [{"name": "basket", "type": "node", "request": "launch", "program": "${workspaceFolder}/debug.js"}]}`),
		"mkdir -p "+folder+"/.vscode && cat > "+folder+"/.vscode/launch.json")
	b := w.browser(t)
	b.login(w.URL, proc.AdminPassword)
	// The cursor is where a breakpoint is wanted.
	payload := fmt.Sprintf(`[["openFile","vscode-remote://%s%s/basket.js:5:1"],["gotoLineMode","true"]]`, strings.TrimPrefix(w.addressOf(w.id), "http://"), folder)
	b.do("open the project", navigate(w.addressOf(w.id)+"/?folder="+folder+"&payload="+url.QueryEscape(payload)))
	b.workbench()
	b.do("wait for the extensions", until(`[...document.querySelectorAll('.statusbar-item')].some(e => e.id.includes('codehub.status'))`))
	b.do("see the line", until(`[...document.querySelectorAll('.editor-instance .view-line')].some(e => e.innerText.includes('total'))`), until(`document.querySelector('[id="status.editor.selection"]')?.innerText.includes('Ln 5')`))
	b.command("Debug: Toggle Breakpoint")
	b.do("see the breakpoint", until(`document.querySelector('.codicon-debug-breakpoint, .codicon-debug-breakpoint-unverified') !== null`))
	b.command("Debug: Select and Start Debugging")
	b.do("choose the configuration", until(`[...document.querySelectorAll('.quick-input-list .monaco-list-row')].some(e => e.innerText.includes('basket'))`), enter())
	b.do("stop at the breakpoint", until(`document.body.innerText.includes('Paused On Breakpoint')`))
	// The console's input is a small editor; what it shows is a list of lines.
	b.do("evaluate an expression", chromedp.Click(".repl .repl-input-wrapper .view-lines"), text("price * 1000 + total"),
		until(`document.querySelector('.repl .repl-input-wrapper')?.innerText.includes('1000')`), enter(),
		until(`[...document.querySelectorAll('.repl .monaco-list-row')].some(e => e.innerText.trim() === '250000')`))
	b.do("see a variable", until(`document.querySelectorAll('.debug-variables .monaco-list-row').length > 2`),
		chromedp.Click(`.debug-variables .monaco-list-row[data-index="0"] .monaco-tl-twistie`),
		until(`[...document.querySelectorAll('.debug-variables .monaco-list-row')].some(e => e.getAttribute('aria-label').startsWith('price, value 250'))`))
	b.screenshot("debugger")
}

// workspaceShell runs commands in a workspace, as its user and with the variables of
// its container.
type workspaceShell struct {
	*server
	id string
}

// run runs a script and returns its output. The test fails if the script does.
func (w workspaceShell) run(input io.Reader, script string) string {
	w.Helper()
	return w.command(input, "bash", "-c", script)
}

func (w workspaceShell) command(input io.Reader, words ...string) string {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), "docker", append([]string{"exec", "--interactive", workspace.ID(w.id).DockerName()}, words...)...)
	cmd.Stdin = input
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.Fatalf("%s: %v\n%s", strings.Join(words, " "), err, out)
	}
	return string(out)
}

// checkTools prints what is not as the documentation says.
const checkTools = `
for name in git git-lfs gcc g++ make gdb cmake pkg-config python python3 pip node npm npx go gofmt java javac jq rg fd fzf vim nano \
	tmux zsh ssh rsync curl wget zip unzip man less ps file code-server code pnpm sqlite3 tree htop dig ip lsof; do
	command -v "$name" > /dev/null || echo "no $name"
done
[ -e /usr/bin/sudo ] && echo 'sudo is there'
case ":$PATH:" in *":$HOME/.local/bin:"*) ;; *) echo "PATH is $PATH" ;; esac
[ "$LANG" = C.UTF-8 ] || echo "LANG is $LANG"
`

func TestDefaultImage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "tools"})
	s.awaitPhase(id, "RUNNING")
	in := workspaceShell{s, id}
	for _, shell := range []string{"sh -c", "bash -c", "bash -lc", "bash -ic", "zsh -c", "zsh -lc", "zsh -ic"} {
		words := append(strings.Fields(shell), checkTools)
		if out := in.command(nil, words...); strings.TrimSpace(withoutTTYNotes(out)) != "" {
			t.Errorf("%s: %s", shell, out)
		}
	}
	for script, want := range map[string]string{
		"go env GOTOOLCHAIN": "local",
		"cd $(mktemp -d) && git init --quiet && git branch --show-current": "main",
		"git config --system filter.lfs.process":                           "git-lfs filter-process",
		"npm config get prefix":                                            "/home/coder/.local",
		"LANG=ko_KR.UTF-8 locale charmap":                                  "UTF-8",
		"LANG=ko_KR.UTF-8 date -d 2026-11-23 +%A":                          "월요일",
		"LANG=en_US.UTF-8 date -d 2026-11-23 +%A":                          "Monday",
		"TZ=Asia/Seoul date -d @0 +%H":                                     "09",
		"man --where git ls curl printf.3 | wc -l":                         "4",
		"man ls | head -1 | tr -s ' '":                                     "LS(1) User Commands LS(1)",
		"sh -c 'sudo true' 2>&1 | head -1":                                 "sudo: System packages cannot be installed here, since workspaces run without root.",
		"apt -y install hello 2>&1 | head -1":                              "apt: System packages cannot be installed here, since workspaces run without root.",
		"apt-get update 2>&1 | grep -o 'pip install'":                      "pip install",
		"apt-get update > /dev/null 2>&1 || echo $?":                       "1",
		"apt list --installed 2>/dev/null | grep -c ^tree/":                "1",
		"apt-get --version | head -1 | cut -d ' ' -f 1":                    "apt",
		"pnpm --version | cut -d . -f 1":                                   "10",
		"sqlite3 :memory: 'select 6 * 7'":                                  "42",
		"dig -v 2>&1 | cut -d ' ' -f 1":                                    "DiG",
		"ip -o -4 address show lo | tr -s ' ' | cut -d ' ' -f 4":           "127.0.0.1/8",
	} {
		if got := strings.TrimSpace(in.run(nil, script)); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	s.remove(id)
}

// withoutTTYNotes removes what an interactive bash says where there is no terminal.
func withoutTTYNotes(out string) string {
	var kept strings.Builder
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "bash: cannot set terminal process group") && !strings.HasPrefix(line, "bash: no job control") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// The commands that stand in for sudo and apt do not keep root from them: a Dockerfile can install
// packages.
func TestRootUsesAptInDerivedImages(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for _, image := range []string{env.slimImage, env.workspaceImage} {
		// Without a network there is nothing to install; apt says what it would do.
		cmd := exec.CommandContext(t.Context(), "docker", "run", "--rm", "--network", "none", "--user", "root", image, "sh", "-ec",
			"apt-get clean; apt-get remove --yes --simulate nano | grep ^Remv.nano; apt-get remove --yes nano > /dev/null; ! command -v nano; sudo true 2> /dev/null || echo $?")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Remv nano") || !strings.HasSuffix(strings.TrimSpace(string(out)), "127") {
			t.Errorf("%s: %v, %s", image, err, out)
		}
	}
}

// The slim image has the IDE and a few tools, and neither compilers nor sudo itself.
func TestSlimImage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "slim"})
	s.awaitPhase(id, "RUNNING")
	out := workspaceShell{s, id}.run(nil, `for name in git curl nano less ssh ps code-server code sudo gcc python3 node go java; do command -v "$name" > /dev/null && echo "$name"; done; sudo 2>&1 | head -1 | wc -l`)
	if got, want := strings.Fields(out), "git curl nano less ssh ps code-server code sudo 1"; strings.Join(got, " ") != want {
		t.Errorf("it has %v, want %s", got, want)
	}
	s.remove(id)
}
