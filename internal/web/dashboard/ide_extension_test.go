package dashboard

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	chromium "codehub/internal/testing/harness/browser"
)

// ideExtensionPage loads the IDE's extension with as much of VS Code as it uses. The page sets the
// answer of codehub, and notes what the extension shows and asks for.
const ideExtensionPage = `<!doctype html><script>
	var _VSCODE_FILE_ROOT = location.origin + '/stable-1/static/out/'
	var answer, items = {}, context = {}, menu = [], warning = [], asked = [], files = [], opened = 0, readmes = []
	window.fetch = async function (url) { asked.push(url.replace(/.*_codehub./, '')); return { json: async function () { return answer } } }
	var nothing = function () { return { dispose: function () {} } }
	var vscode = {
		StatusBarAlignment: {}, ThemeColor: class {}, FileType: { File: 1 },
		window: {
			terminals: [], createTerminal: function () { return { show: function () { opened++ } } },
			tabGroups: { all: [], onDidChangeTabs: nothing }, onDidWriteTerminalData: nothing,
			createStatusBarItem: function () { return { show: function () {}, hide: function () {}, dispose: function () {} } },
			showTextDocument: async function (file) { readmes.push(file) },
			showWarningMessage: async function () { warning = [].slice.call(arguments) },
			showQuickPick: async function (items) { menu = items.map(function (i) { return i.label }) }
		},
		workspace: {
			workspaceFolders: [{ uri: { path: '/home/coder/project/api', with: function (part) { return part.path } } }],
			fs: {
				stat: async function (file) { if (!files.includes(file)) throw { code: 'FileNotFound' } },
				writeFile: async function (file) { files.push(file) },
				readDirectory: async function () { return [['readme', 2], ['README', 1], ['Readme.md', 65]] }
			},
			textDocuments: [], onDidChangeTextDocument: nothing, onDidSaveTextDocument: nothing },
		commands: {
			registerCommand: function (name, run) { items[name] = run; return nothing() },
			executeCommand: function (name, key, value) { if (name === 'setContext') context[key] = value }
		}
	}
	var exports = {}
	function require () { return vscode }
	var texts = { stay: 'Keep running', keep_awake: 'Keep awake…', stop: 'Stop', dashboard: 'Dashboard' }
	async function begin (guest) {
		answer = { open: true, guest: guest, status: 'shop', ending: 'shop is idle.', stops_at: new Date().toISOString(), keep_awake: [{ seconds: 3600, text: '1 h' }], texts: texts, poll_seconds: 20 }
		await exports.activate({ subscriptions: [] })
		await items['codehub.menu']()
		var first = menu.join(), warned = warning.join()
		asked = []
		menu = []
		for (var name of ['stop', 'keepAwake']) await items['codehub.' + name]()
		return [first, warned, menu.join(), asked.join(), context['codehub.owner']].join(' | ')
	}
	async function terminals (file) {
		answer = { open: true, status: 'shop', keep_awake: [], texts: texts, poll_seconds: 20, terminal: file }
		for (var n = 0; n < 2; n++) await exports.activate({ subscriptions: [] })
		return opened + ' ' + files.concat(readmes).join()
	}
</script><script src="extension.js"></script>`

// The IDE's extension offers a guest only what guests may do.
func TestIDEExtensionForGuests(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../../images/ide/extension/extension.js")
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/extension.js" {
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
			_, _ = io.WriteString(w, "(function () {"+string(script)+"\n})()") // a module
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, ideExtensionPage)
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(chromium.Shared(t, server.URL), 2*time.Minute)
	defer cancel()
	for guest, want := range map[string]string{
		"false": "Keep running,Keep awake…,Stop,Dashboard | shop is idle.,Keep running,Keep awake… | 1 h | stop,state | true",
		"true":  "Dashboard | shop is idle. |  |  | false",
	} {
		if _, err := chromedp.Run(ctx, chromedp.Navigate(server.URL+"/")); err != nil {
			t.Fatal(err)
		}
		got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`begin(`+guest+`)`, chromedp.EvalAwaitPromise))
		if err != nil || strings.TrimSpace(got) != want {
			t.Errorf("guest %s: %q, want %q; %v", guest, got, want, err)
		}
	}
	// A terminal and the README are opened once, in the IDE of a repository alone.
	for file, want := range map[string]string{`"/home/coder/.local/state/codehub/terminal"`: "1 /home/coder/.local/state/codehub/terminal,/home/coder/project/api/Readme.md", "undefined": "0 "} {
		if _, err := chromedp.Run(ctx, chromedp.Navigate(server.URL+"/")); err != nil {
			t.Fatal(err)
		}
		if got, err := chromedp.Run(ctx, chromedp.Evaluate[string](`terminals(`+file+`)`, chromedp.EvalAwaitPromise)); err != nil || got != want {
			t.Errorf("terminals %s: %q, want %q; %v", file, got, want, err)
		}
	}
	// The palette has the commands of owners for owners alone.
	manifest, err := os.ReadFile("../../../images/ide/extension/package.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"stay", "keepAwake", "stop"} {
		if !strings.Contains(string(manifest), `{ "command": "codehub.`+command+`", "when": "codehub.owner" }`) {
			t.Errorf("the palette shows %s to guests", command)
		}
	}
}
