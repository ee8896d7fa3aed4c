package dashboard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The page has the client of the visitor's own system first, with the line that gets it. Without a
// login, /bin/ serves the clients of all systems and their checksums, and no other file.
func TestConnectYourComputer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"codehub-cli_0.1.0_linux_amd64.tar.gz", "codehub-cli_0.1.0_windows_amd64.zip", "codehub-cli_0.1.0_darwin_arm64.tar.gz", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t)
	w.dash.Clients = dir
	b := w.person("ann")
	for agent, want := range map[string]string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/140":          "Invoke-WebRequest",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Safari/605.1":  "codehub-cli_0.1.0_darwin_arm64.tar.gz | sudo tar",
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko Firefox/140.0": "codehub-cli_0.1.0_linux_amd64.tar.gz | sudo tar",
	} {
		page := b.get("/computer", "Accept", "text/html", "User-Agent", agent).body
		_, line, _ := strings.Cut(page, `id="client-line"`)
		line, _, _ = strings.Cut(line, "</code>")
		if !strings.Contains(line, want) {
			t.Errorf("%s: the line is %q", agent, line)
		}
	}
	stranger := w.browser()
	if a := stranger.get("/bin/codehub-cli_0.1.0_linux_amd64.tar.gz"); a.status != 200 || a.body != "content of codehub-cli_0.1.0_linux_amd64.tar.gz" {
		t.Errorf("the client: %d %q", a.status, a.body)
	}
	if a := stranger.get("/bin/checksums.txt"); a.status != 200 || strings.Count(a.body, "\n") != 3 {
		t.Errorf("checksums: %d %q", a.status, a.body)
	}
	for _, path := range []string{"/bin/notes.txt", "/bin/..%2fsecret", "/bin/codehub-cli_9.9.9_linux_amd64.tar.gz"} {
		if a := stranger.get(path); a.status != 404 {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}
