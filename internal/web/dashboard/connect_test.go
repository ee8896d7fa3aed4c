package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/running/service"
	"codehub/internal/workspace"

	"github.com/chromedp/chromedp"
)

var sshServer = service.SSHServer{Host: "code.example.com", Port: 2222, Fingerprint: "SHA256:x"}

// The log of an IDE that a browser has opened, with lines that are no routine among them.
const ideLog = `[2026-11-29T19:14:00.363Z] info  code-server 4.139.1 53c2f3253bcf32886706fc023e794bbeb253c90f
[2026-11-29T19:14:00.364Z] info  Using user-data-dir /home/coder/.local/share/code-server
[2026-11-29T19:14:00.381Z] info  HTTP server listening on http://0.0.0.0:8080/
[2026-11-29T19:14:00.382Z] info    - Not serving HTTPS
[2026-11-29T19:14:00.390Z] warn  The disk is slow
level=WARN msg="IDE ended; starting it again" reason="killed by SIGKILL"
[19:14:23] 




[reconnection-grace-time] No CLI argument provided, using default: 10800000ms (10800s)
[19:14:23] [AgentHostChannel] Registered lazy IPC channel 'agentHostProxy' (upstream: /tmp/vscode-ipc.sock)
[19:14:23] Extension host agent started.
File not found: /opt/codehub-ide/code-server/lib/vscode/node_modules/vsda/rust/web/vsda_bg.wasm
[19:14:26] [172.17.0.1][951897a7][ManagementConnection] New connection established.
[19:14:28] [172.17.0.1][1c43b6b7][ExtensionHostConnection] <27> Launched Extension Host Process.
[19:15:00] [172.17.0.1][1c43b6b7][ExtensionHostConnection] <27> Extension Host Process exited with code: 0, signal: null.
[19:15:02] [172.17.0.1][1c43b6b8][ExtensionHostConnection] <28> Extension Host Process exited with code: 1, signal: null.
File not found: /home/coder/project/notes.txt
Error: no space left on device

    at writeFile (fs.js:1:2)
`

const unusualLog = `[2026-11-29T19:14:00.390Z] warn  The disk is slow
level=WARN msg="IDE ended; starting it again" reason="killed by SIGKILL"
[19:15:02] [172.17.0.1][1c43b6b8][ExtensionHostConnection] <28> Extension Host Process exited with code: 1, signal: null.
File not found: /home/coder/project/notes.txt
Error: no space left on device

    at writeFile (fs.js:1:2)
`

func TestRoutineLinesAreHidden(t *testing.T) {
	t.Parallel()
	text, hidden := withoutRoutine(ideLog)
	if text != unusualLog || hidden != 12 {
		t.Errorf("%d lines hidden, left:\n%s", hidden, text)
	}
	if text, hidden := withoutRoutine(unusualLog); text != unusualLog || hidden != 0 {
		t.Errorf("%d lines hidden of a log without routine, left:\n%s", hidden, text)
	}
}

// The page says how many lines it hides, and shows all on request.
func TestLogWithoutRoutine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", running)
	path := "/workspaces/" + string(id) + "/logs"
	w.logs.print(ideLog)
	short, all := b.get(path).body, b.get(path+"?all=on").body
	contains(t, "the short log", short, "The disk is slow", "no space left", "12 routine lines of the IDE are hidden.", `href="`+path+`?all=on"`)
	lacks(t, "the short log", short, "Not serving HTTPS", "Launched Extension Host")
	contains(t, "the whole log", all, "The disk is slow", "Not serving HTTPS", "Launched Extension Host")
	lacks(t, "the whole log", all, "are hidden")
	w.logs.end()
	w.logs.print("[19:14:23] Extension host agent started.\n")
	contains(t, "nothing but routine", b.get(path).body, "1 routine line of the IDE is hidden.")
}

// The page has the ways into a workspace that this installation offers, and addresses that VS
// Code and JetBrains Toolbox understand.
func TestConnect(t *testing.T) {
	t.Parallel()
	w := newOriginWorld(t)
	b := w.loggedIn()
	id := w.add("demo", running)
	loud := w.add("Demo", standby)
	page := func(id workspace.ID) string { return box(t, b.get("/workspaces/"+string(id)).body, "connect") }
	contains(t, "without SSH", page(id), "This server has no SSH port.", "codehub ssh demo", `href="/w/`+string(id)+`/"`, `href="/workspaces/`+string(id)+`/terminal"`)
	lacks(t, "without SSH", page(id), "vscode:", "jetbrains:", "starts the workspace")

	w.dash.SSH = sshServer
	contains(t, "with SSH", page(id), "<code id=\"ssh-command\" tabindex=\"0\">ssh -p 2222 demo@code.example.com</code>", `data-copy="#ssh-command"`,
		`href="vscode://vscode-remote/ssh-remote&#43;demo@code.example.com:2222/home/coder/project"`,
		`href="jetbrains://gateway/ssh/environment?h=code.example.com&amp;p=2222&amp;projectHint=%2Fhome%2Fcoder%2Fproject&amp;u=demo"`)
	lacks(t, "with SSH", page(id), "no SSH port")
	// VS Code makes the letters of an address small.
	contains(t, "a name with capitals", page(loud), "ssh -p 2222 Demo@code.example.com", "ssh-remote&#43;"+string(loud)+"@code.example.com:2222", "Connecting starts the workspace.")
	contains(t, "a stopped one", page(loud), `href="/w/`+string(loud)+`/"`)

	lost := w.add("lost", failed(workspace.ErrImagePullFailed, "no"))
	contains(t, "in ERROR", page(lost), "cannot be opened in this state")
	lacks(t, "in ERROR", page(lost), "/w/", "vscode:", "ssh ")
	if _, err := w.DB.DeleteWorkspace(t.Context(), w.caller("admin"), lost, false); err != nil {
		t.Fatal(err)
	}
	lacks(t, "deleted", page(lost), "<section")

	// Guests name a workspace by its id.
	ann := w.person("ann")
	if _, err := w.DB.Share(t.Context(), w.caller("admin"), id, postgres.NewShare{User: "ann", Access: workspace.AccessUse}); err != nil {
		t.Fatal(err)
	}
	guest := ann.get("/shared/" + string(id))
	if guest.status != http.StatusOK {
		t.Fatalf("the guest's page: %d", guest.status)
	}
	contains(t, "the guest's page", box(t, guest.body, "connect"), fmt.Sprintf("ssh -p 2222 %s@code.example.com", id), `href="/w/`+string(id)+`/"`, "/terminal", "ssh-remote&#43;"+string(id)+"@")
	w.dash.SSH = service.SSHServer{}
	contains(t, "the guest's page without SSH", box(t, ann.get("/shared/"+string(id)).body, "connect"), "codehub ssh admin/demo")
}

// box returns the page from the element with this id to the next one of its kind.
func box(t *testing.T, page, id string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `<div id="`+id+`"`)
	if !ok {
		t.Fatalf("the page has no #%s: %s", id, page)
	}
	inside, _, _ := strings.Cut(rest, `<div id="`)
	return inside
}

// What people come for is on the first screen; the log is folded, and read when it is opened.
func TestWorkspacePageBeginsWithConnect(t *testing.T) {
	t.Parallel()
	w := newPortsWorld(t, workspace.VisiblePublic)
	w.dash.SSH, w.dash.Usage = sshServer, steadyUsage{}
	id := w.add("demo", running)
	w.want(id, "desired_state", "RUNNING")
	w.logs.print(ideLog)
	b := w.tab()
	b.run(chromedp.EmulateViewport(1440, 900))
	b.logIn()
	b.visit("/workspaces/" + string(id))
	b.shown("#usage-title")
	tops := value(b, chromedp.Evaluate[[]float64](`['#connect', '#ports', '#usage', '#memo', '#log-box'].map(s => document.querySelector(s).getBoundingClientRect().top)`))
	for i := range tops[1:] {
		if tops[i] >= tops[i+1] {
			t.Errorf("the boxes begin at %v", tops)
		}
	}
	if end := value(b, chromedp.Evaluate[float64](`document.querySelector('#usage').getBoundingClientRect().bottom`)); end > 900 {
		t.Errorf("the usage ends at %v, below the first screen", end)
	}
	if value(b, chromedp.Evaluate[bool](`document.querySelector('#log-box').open || !!document.querySelector('#log pre')`)) || w.requests("GET", w.HTTP.URL+"/workspaces/"+string(id)+"/logs") > 0 {
		t.Error("the log is read before it is opened")
	}
	b.press("#log-box > summary")
	b.shown("#log pre")
	log := `document.querySelector('#log pre').textContent`
	b.until(log + `.includes('The disk is slow') && !` + log + `.includes('Not serving HTTPS')`)
	b.press("#log-all")
	b.until(log + `.includes('Not serving HTTPS')`)
	b.press("#connect [data-copy]")
	b.until(`document.querySelector('#connect [data-copy]').textContent.includes('Copied') || getSelection().toString() === 'ssh -p 2222 demo@code.example.com'`)
}
