// Package ide tests the image of the IDE.
package ide

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/testing/harness"
)

// The IDE and its native parts work where nothing else is, and where files claim that
// the libc is musl.
func TestIDENeedsNothingOfTheImage(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	probe, err := os.ReadFile("testdata/probe.js")
	if err != nil {
		t.Fatal(err)
	}
	ide := docker(t, nil, "create", "--label", "codehub.test=ide", "--volume", "/opt/codehub-ide", harness.IDEImage())
	cleanup(t, "rm", "--force", "--volumes", ide)
	image := docker(t, archive(t, map[string]string{
		"probe.js": string(probe), "etc/alpine-release": "3.22.0\n", "usr/bin/ldd": "#!/bin/sh\n# musl libc\n", "package.json": `{"type": "module"}`,
	}), "import", "-")
	cleanup(t, "image", "rm", image)

	const shell = "/opt/codehub-ide/bin/sh"
	run := docker(t, nil, "run", "--detach", "--init", "--label", "codehub.test=ide", "--volumes-from", ide+":ro",
		"--user", "200123:200123", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--tmpfs", "/home/coder:uid=200123,gid=200123,mode=700", "--tmpfs", "/tmp:mode=1777",
		"--env", "HOME=/home/coder", "--env", "HASHED_PASSWORD=5ec7e7", "--env", "XDG_DATA_HOME=/data", "--env", "LD_LIBRARY_PATH=/none",
		image, "/opt/codehub-ide/start")
	cleanup(t, "rm", "--force", "--volumes", run)
	address := "http://" + docker(t, nil, "inspect", "--format", "{{.NetworkSettings.IPAddress}}", run) + ":8080"
	harness.Eventually(t, "the IDE answers", func() bool {
		res, err := http.Get(address + "/healthz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	if page := get(t, address, ""); strings.Contains(page, "vscode-workbench") {
		t.Error("it shows the workbench without the secret")
	}
	if page := get(t, address, "5ec7e7"); !strings.Contains(page, "vscode-workbench") || !strings.Contains(page, "_codehub/ide.js") {
		t.Errorf("it does not show the workbench: %s", page)
	}

	var got map[string]any
	out := docker(t, nil, "exec", run, "/opt/codehub-ide/lib/node", "--input-type=commonjs", "--eval",
		`process.argv = [process.argv[0], "/tmp/probe.cjs", "`+shell+`"]; require("node:fs").copyFileSync("/probe.js", "/tmp/probe.cjs"); require("/tmp/probe.cjs")`)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]any{
		"terminal": "42 200123", "ripgrep": "codehub", "fork": "/opt/codehub-ide/lib/node /none", "argon2": "$argon2id",
		"watcher": "function", "spdlog": "function", "watchdog": "function", "remote": "Command", "local": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the native parts (-want +got):\n%s", diff)
	}
	if home := docker(t, nil, "exec", run, shell, "-c", "ls -A ~ ~/.local/share/code-server/User"); !strings.Contains(home, "project") || strings.Contains(home, "settings.json") {
		t.Errorf("the home has %s", home)
	}
	checkLanguage(t, address, run)
}

// checkLanguage checks that the page of a running IDE is in the language that the request
// asks for, or that the user has chosen, and compares the Korean texts with the English ones.
func checkLanguage(t *testing.T, address, container string) {
	const korean, secret = "/opt/codehub-ide/code-server/lib/vscode/extensions/codehub-language-pack-ko/", "5ec7e7"
	texts := regexp.MustCompile(`src="([^"]*nls\.messages\.js)"`)
	language := func(header ...string) (code, script string) {
		t.Helper()
		page := get(t, address, secret, header...)
		if !strings.Contains(page, "&quot;window.autoDetectColorScheme&quot;:true") {
			t.Errorf("the page lacks codehub's settings: %s", page)
		}
		found := texts.FindAllStringSubmatch(page, -1)
		if len(found) < 2 { // of English alone
			return "en", ""
		}
		script = get(t, address+"/"+html.UnescapeString(strings.TrimPrefix(found[1][1], "./")), secret)
		_, code, _ = strings.Cut(strings.TrimSuffix(script, ";"), `_VSCODE_NLS_LANGUAGE=`)
		return strings.Trim(code, `"`), script
	}
	for _, c := range []struct {
		name, want string
		header     []string
	}{
		{"no language", "en", nil},
		{"English", "en", []string{"Accept-Language", "en-US,en;q=0.9,ko;q=0.8"}},
		{"Korean", "ko", []string{"Accept-Language", "ko-KR,ko;q=0.9,en;q=0.8"}},
		{"English by the cookie", "en", []string{"Accept-Language", "ko-KR", "Cookie", "vscode.nls.locale=en"}},
		{"Korean by the cookie", "ko", []string{"Accept-Language", "en-US", "Cookie", "vscode.nls.locale=ko"}},
		{"a language without a pack", "en", []string{"Accept-Language", "fr"}},
	} {
		if got, _ := language(c.header...); got != c.want {
			t.Errorf("%s: the page is in %q, want %q", c.name, got, c.want)
		}
	}
	_, script := language("Accept-Language", "ko")
	list, _, _ := strings.Cut(strings.TrimPrefix(script, "globalThis._VSCODE_NLS_MESSAGES="), ";\n")
	var got, english []string
	if err := json.Unmarshal([]byte(list), &got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(docker(t, nil, "exec", container, "/opt/codehub-ide/bin/busybox", "cat", korean+"../../out/nls.messages.json")), &english); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(english) {
		t.Fatalf("%d Korean texts for %d English ones", len(got), len(english))
	}
	placeholders, translated := regexp.MustCompile(`\{\d+\}`), 0
	for i := range got {
		if got[i] != english[i] {
			translated++
		}
		of := func(text string) []string { return slices.Sorted(slices.Values(placeholders.FindAllString(text, -1))) }
		if !slices.Equal(of(got[i]), of(english[i])) {
			t.Errorf("%q is %q", english[i], got[i])
		}
	}
	if translated < len(english)/2 {
		t.Errorf("%d of %d texts are Korean", translated, len(english))
	}
	if made := docker(t, nil, "exec", container, "/opt/codehub-ide/bin/busybox", "find", "/home/coder/.local/share/code-server/clp", "-type", "f"); made != "" {
		t.Errorf("the IDE has made texts that the image has: %s", made)
	}
	// "Configure Display Language" writes this.
	docker(t, nil, "exec", container, "/opt/codehub-ide/bin/sh", "-c", `echo '{"locale": "en"}' > ~/.local/share/code-server/User/argv.json`)
	if got, _ := language("Cookie", "vscode.nls.locale=ko"); got != "en" {
		t.Errorf("where the user has chosen English, the page is in %q", got)
	}
}

// A start leaves the settings and the language packs that a home has, adds Korean to them,
// and replaces what an earlier IDE has added.
func TestStartKeepsHome(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	// While the first IDE has the port, the others end when they want it.
	const script = `mkdir -p $HOME/elsewhere/share/code-server/User && ln -s elsewhere $HOME/.local && echo mine > $HOME/elsewhere/share/code-server/User/settings.json
		/opt/codehub-ide/start > /tmp/log 2>&1 & for i in $(seq 600); do wget -qO- http://127.0.0.1:8080/healthz > /dev/null 2>&1 && break; sleep 0.1; done
		cat /tmp/log >&2
		start() {
			mkdir -p /tmp/$1/.local/share/code-server && echo "$2" > /tmp/$1/.local/share/code-server/languagepacks.json
			HOME=/tmp/$1 /opt/codehub-ide/start > /tmp/log 2>&1; cat /tmp/log >&2
		}
		start theirs '{"ko": {"hash": "1", "extensions": [{"extensionIdentifier": {"id": "ms-ceintl.vscode-language-pack-ko"}, "version": "1"}]}}'
		start stale '{"fr": {"hash": "2"}, "ko": {"hash": "1", "extensions": [{"extensionIdentifier": {"id": "codehub.language-pack-ko"}, "version": "1"}]}}'
		start broken '{'
		cat $HOME/.local/share/code-server/User/settings.json
		for home in $HOME /tmp/theirs /tmp/stale /tmp/broken; do echo; cat $home/.local/share/code-server/languagepacks.json; done`
	out := docker(t, nil, "run", "--rm", "--init", "--label", "codehub.test=ide", "--user", "200123:200123",
		"--tmpfs", "/home/coder:uid=200123,gid=200123,mode=700", "--tmpfs", "/tmp:mode=1777", "--env", "HOME=/home/coder",
		harness.IDEImage(), "/opt/codehub-ide/bin/sh", "-c", script)
	settings, rest, _ := strings.Cut(out, "\n")
	if settings != "mine" {
		t.Errorf("the settings are %q", settings)
	}
	type entry struct{ Hash, Label string }
	var homes []map[string]entry
	for d := json.NewDecoder(strings.NewReader(rest)); d.More(); {
		var packs map[string]entry
		if err := d.Decode(&packs); err != nil {
			t.Fatalf("%v: %s", err, rest)
		}
		homes = append(homes, packs)
	}
	if len(homes) != 4 || homes[0]["ko"].Label != "한국어" {
		t.Fatalf("the language packs are %v", homes)
	}
	own := homes[0]["ko"]
	want := []map[string]entry{{"ko": own}, {"ko": {Hash: "1"}}, {"fr": {Hash: "2"}, "ko": own}, {"ko": own}}
	if diff := cmp.Diff(want, homes); diff != "" {
		t.Errorf("the language packs (-want +got):\n%s", diff)
	}
}

// get returns what the IDE answers, with headers by name and value.
func get(t *testing.T, address, secret string, header ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if secret != "" {
		req.AddCookie(&http.Cookie{Name: "code-server-session", Value: secret})
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// archive returns a tar archive of files by path.
func archive(t *testing.T, files map[string]string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// docker runs a command and returns its output without the last line's end.
func docker(t *testing.T, input io.Reader, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "docker", args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("docker %s: %v: %s%s", args[0], err, out.Bytes(), errs.Bytes())
	}
	return strings.TrimSpace(out.String())
}

// cleanup runs a command of docker at the end of the test.
func cleanup(t *testing.T, args ...string) {
	t.Cleanup(func() {
		if out, err := exec.Command("docker", args...).CombinedOutput(); err != nil {
			t.Errorf("docker %s: %v: %s", strings.Join(args, " "), err, out)
		}
	})
}
