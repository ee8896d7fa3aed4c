package e2e

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/api"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// program is debugged in the IDE, with a breakpoint on line 4.
const (
	program = `let total = 0
for (const price of [250, 199])
  total += price
console.log(total)
`
	launch = `{"version": "0.2.0", "configurations": [{"name": "basket", "type": "node", "request": "launch", "program": "${workspaceFolder}/basket.js"}]}`
)

// galleryServer answers as an extension gallery with the one extension of ~/gallery.vsix.
const galleryServer = `
const at = 'http://127.0.0.1:7777', date = '2026-11-01T00:00:00Z'
const manifest = 'Microsoft.VisualStudio.Code.Manifest', archive = 'Microsoft.VisualStudio.Services.VSIXPackage'
const extension = {
	extensionId: '11111111-1111-4111-8111-111111111111', extensionName: 'greet-gallery', displayName: 'Greet', shortDescription: '', flags: 'validated, public',
	publisher: {publisherId: '22222222-2222-4222-8222-222222222222', publisherName: 'codehub-test', displayName: 'codehub-test', flags: 'verified'},
	releaseDate: date, publishedDate: date, lastUpdated: date, statistics: [], tags: [], categories: [], deploymentType: 0,
	versions: [{version: '1.0.0', flags: 'validated', lastUpdated: date, assetUri: at, fallbackAssetUri: at,
		files: [{assetType: manifest, source: at + '/' + manifest}, {assetType: archive, source: at + '/' + archive}],
		properties: [{key: 'Microsoft.VisualStudio.Code.Engine', value: '^1.80.0'}]}],
}
require('http').createServer((q, s) => {
	console.log(q.method + ' ' + q.url)
	const json = (v) => s.setHeader('Content-Type', 'application/json').end(JSON.stringify(v))
	if (q.url === '/gallery/extensionquery') json({results: [{extensions: [extension], resultMetadata: [{metadataType: 'ResultCount', metadataItems: [{name: 'TotalCount', count: 1}]}]}]})
	else if (q.url.startsWith('/' + manifest)) json({name: 'greet-gallery', publisher: 'codehub-test', version: '1.0.0', engines: {vscode: '^1.80.0'}})
	else if (q.url.startsWith('/' + archive)) s.end(require('fs').readFileSync(process.env.HOME + '/gallery.vsix'))
	else s.writeHead(404).end()
}).listen(7777, '127.0.0.1', () => console.log('listening'))
`

// In a new workspace the IDE opens without a question or a page of its own. Extensions
// can be installed from files and from the gallery of the setting, and a program can be
// debugged. The extensions of the server's folder are there, also in a home that is older
// than they, unless the user has a newer version.
func TestIDEInDefaultImage(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const gallery = "http://127.0.0.1:7777/gallery" // inside the workspace
	folder := t.TempDir()
	s := startQuick(t, "CODEHUB_DEFAULT_IMAGE="+env.workspaceImage, "CODEHUB_DELETE_GRACE=0s", "CODEHUB_EXTENSIONS_DIR="+folder,
		fmt.Sprintf(`CODEHUB_EXTENSIONS_GALLERY={"serviceUrl": %q}`, gallery))
	id := s.create(api.CreateWorkspace{Name: "extensions"})
	s.awaitPhase(id, "RUNNING")
	in := workspaceShell{s, id}
	for _, name := range []string{"shell", "terminal", "page", "gallery"} {
		in.run(bytes.NewReader(extension(t, name, "1.0.0", name)), "cat > ~/"+name+".vsix")
	}
	in.run(nil, "code-server --install-extension ~/shell.vsix")
	in.run(strings.NewReader(galleryServer), "cat > ~/gallery.js; node ~/gallery.js > ~/gallery.log 2>&1 & until grep -q listening ~/gallery.log; do sleep 0.1; done")
	in.run(nil, "code-server --install-extension codehub-test.greet-gallery || { cat ~/gallery.log; exit 1; }")
	in.run(bytes.NewReader(extension(t, "newer", "1.1.0", "newer")), "cat > ~/newer.vsix && code-server --install-extension ~/newer.vsix")
	in.run(strings.NewReader(program), "cat > ~/project/basket.js")
	in.run(strings.NewReader(launch), "mkdir ~/project/.vscode && cat > ~/project/.vscode/launch.json")
	prepareIDE(t, id)
	s.setDesired(id, "STANDBY")
	s.awaitPhase(id, "STANDBY")
	for name, content := range map[string][]byte{"any": extension(t, "folder", "1.0.0", "folder"), "newer-1.0.0": extension(t, "newer", "1.0.0", "older")} {
		if err := os.WriteFile(filepath.Join(folder, name+".vsix"), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.setDesired(id, "RUNNING")
	s.awaitPhase(id, "RUNNING")

	b := s.browser(t)
	b.login(s.URL, proc.AdminPassword)
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.do("wait for the workbench", until(`document.querySelector('.explorer-folders-view, .explorer-empty-view') !== null`),
		until(`document.querySelector('.statusbar-item') !== null`))
	b.terminal() // the IDE is connected from here on
	b.screenshot("quiet")
	for what, selector := range map[string]string{
		"a tab": ".tabs-container .tab", "a dialog": ".monaco-dialog-box", "a notification": ".notification-toast", "a banner": ".part.banner .message-container",
	} {
		shown, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.innerText).join('; ')`, selector)))
		if err != nil || shown != "" {
			t.Errorf("the IDE opens with %s: %q, %v", what, shown, err)
		}
	}
	configuration, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.getElementById('vscode-workbench-web-configuration').dataset.settings`))
	if err != nil || !strings.Contains(configuration, fmt.Sprintf(`"extensionsGallery":{"serviceUrl":%q}`, gallery)) || !strings.Contains(configuration, `"enableTelemetry":false`) {
		t.Errorf("the page's configuration has another gallery, or telemetry: %v, %s", err, configuration)
	}

	// A command of an extension that was just installed may not be known yet.
	says := func(name string) {
		b.Helper()
		toast := func(words string) string {
			return fmt.Sprintf(`[...document.querySelectorAll('.notification-toast')].some(e => e.innerText.includes(%q))`, words)
		}
		for try := 1; ; try++ {
			b.command("Greet from the " + name)
			b.do("see an answer", until(toast("It works from the "+name)+" || "+toast("resulted in an error")))
			greeted, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](toast("It works from the "+name)))
			if err == nil && greeted {
				return
			}
			if err != nil || try == 5 {
				t.Fatalf("the %s's extension does not greet: %v", name, err)
			}
			b.command("Notifications: Clear All Notifications")
		}
	}
	says("shell")
	says("gallery")
	b.command("Notifications: Clear All Notifications") // three are shown at most
	says("folder")
	says("newer")
	b.shell("code-server --install-extension ~/terminal.vsix", "successfully installed")
	says("terminal")
	b.command("Extensions: Install from VSIX")
	rows := `[...document.querySelectorAll('.quick-input-list .monaco-list-row')]`
	b.do("choose the file", until(`document.querySelector('.quick-input-widget .quick-input-title')?.innerText.includes('VSIX') && `+rows+`.length > 0`),
		until(`document.querySelector('.quick-input-widget input').select() === undefined`), text("/home/coder/page.vsix"),
		until(rows+`.some(e => e.innerText.includes('page.vsix'))`), chromedp.KeyEvent("\r"),
		until(`[...document.querySelectorAll('.notification-toast')].some(e => e.innerText.includes('Completed installing'))`))
	says("page")
	b.screenshot("extensions")

	b.do("open a program at a line", chromedp.Click(".terminal-wrapper.active .xterm-screen"), text("code-server --goto ~/project/basket.js:4:1"), chromedp.KeyEvent("\r"),
		until(`[...document.querySelectorAll('.tab.active')].some(e => e.textContent.includes('basket.js'))`), chromedp.Click(".editor-instance .view-lines .view-line:nth-child(4)"))
	b.command("Debug: Toggle Breakpoint")
	b.do("see the breakpoint", until(`document.querySelector('.codicon-debug-breakpoint') !== null`))
	b.command("Debug: Select and Start Debugging")
	b.do("choose the configuration", until(rows+`.some(e => e.innerText.trim().startsWith('basket'))`), chromedp.KeyEvent("\r"))
	b.do("see where it stops", until(`document.querySelector('.debug-top-stack-frame-line') !== null`),
		until(`/paused on breakpoint/i.test(document.querySelector('.debug-call-stack')?.innerText)`))
	b.screenshot("stopped")
	s.remove(id)
}

// extension returns a .vsix file with an extension whose command shows a message with the
// words.
func extension(t *testing.T, name, version, words string) []byte {
	t.Helper()
	var out bytes.Buffer
	zw := zip.NewWriter(&out)
	for file, content := range map[string]string{
		"extension/package.json": fmt.Sprintf(`{"name": "greet-%[1]s", "publisher": "codehub-test", "version": %[2]q, "engines": {"vscode": "^1.80.0"}, "main": "./main.js",
			"contributes": {"commands": [{"command": "greet.%[1]s", "title": "Greet from the %[1]s"}]}}`, name, version),
		"extension/main.js": fmt.Sprintf(`const vscode = require('vscode')
			exports.activate = (context) => context.subscriptions.push(
				vscode.commands.registerCommand('greet.%[1]s', () => vscode.window.showInformationMessage('It works from the %[2]s')))`, name, words),
	} {
		w, err := zw.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
