// Package deploy tests install.sh.
package deploy

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// system is a machine as install.sh sees it.
type system struct {
	kernel, processor string   // of uname; Linux and x86_64 unless set
	installers        []string // apt-get, dnf, rpm, sudo
	fetchers          []string // curl unless set
	user              string   // number; root unless set
	codehub           string   // exit status of the installed program's serve --help; none unless set
	packages          string   // that rpm knows after the installation; those of release unless set
	later             bool     // rpm knows codehub already
}

// installed runs install.sh and returns the commands that install, and what it printed.
func installed(t *testing.T, s system, arguments ...string) (commands []string, printed string, err error) {
	t.Helper()
	bin, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	if s.fetchers == nil {
		s.fetchers = []string{"curl"}
	}
	or := func(value, otherwise string) string {
		if value == "" {
			return otherwise
		}
		return value
	}
	for _, name := range append([]string{"sed", "sha256sum", "cut", "mktemp", "chmod"}, s.fetchers...) {
		if name == "wget" {
			continue
		}
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	curl, _ := exec.LookPath("curl")
	scripts := map[string]string{
		"uname": "case $1 in -s) echo " + or(s.kernel, "Linux") + " ;; *) echo " + or(s.processor, "x86_64") + " ;; esac",
		"id":    "echo " + or(s.user, "0"),
		"rm":    `case $2 in /usr/*) echo "rm $*" >>` + ran + ` ;; *) exec /bin/rm "$@" ;; esac`,
	}
	if s.codehub != "" {
		scripts["codehub"] = "exit " + s.codehub
	}
	for _, name := range append([]string{"tar"}, s.installers...) {
		scripts[name] = `echo "` + name + ` $*" | /bin/sed 's#/[^ ]*/codehub#codehub#' >>` + ran
	}
	for _, name := range s.fetchers {
		if name == "wget" { // of BusyBox
			scripts["wget"] = `[ "$1 $2" = "-q -O" ] && exec ` + curl + ` --silent --fail --output "$3" "$4"`
		}
	}
	if slices.Contains(s.installers, "rpm") {
		scripts["rpm"] = fmt.Sprintf("case \"$1 $3\" in '--query codehub') exit %d ;; '--query '*) case $3 in %s) exit 0 ;; *) exit 1 ;; esac ;; esac\n",
			map[bool]int{true: 0, false: 1}[s.later], or(s.packages, "*")) + scripts["rpm"]
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/bin/sh", append([]string{"install.sh"}, arguments...)...)
	cmd.Env = []string{"PATH=" + bin, "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(ran)
	for line := range strings.Lines(string(log)) {
		commands = append(commands, strings.TrimSpace(line))
	}
	return commands, string(out), err
}

// release serves the files of a release. Files of the second list differ from checksums.txt.
func release(t *testing.T, version, packaged string, damaged ...string) string {
	t.Helper()
	dir := t.TempDir()
	var sums strings.Builder
	for _, name := range []string{"codehub", "codehub-cli"} {
		for _, file := range []string{
			name + "_" + packaged + "-1_amd64.deb", name + "_" + packaged + "-1_arm64.deb", name + "-" + packaged + "-1.x86_64.rpm",
			name + "_" + version + "_linux_amd64.tar.gz",
		} {
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256([]byte(file)), file)
			if err := os.WriteFile(filepath.Join(dir, file), []byte(file), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, file := range damaged {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("damaged"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "checksums.txt"), []byte(sums.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	return server.URL
}

func TestInstallScript(t *testing.T) {
	t.Parallel()
	url := release(t, "0.2.0", "0.2.0")
	later := release(t, "0.2.0-5-gabcdef0", "0.2.0+5.gabcdef0")
	candidate := release(t, "0.3.0-rc.1", "0.3.0~rc.1")
	debian := []string{"apt-get", "rpm"}
	for name, c := range map[string]struct {
		system    system
		arguments []string
		want      []string
	}{
		"deb":            {system{installers: debian}, []string{"--from", url}, []string{"apt-get --quiet update", "apt-get install --yes codehub_0.2.0-1_amd64.deb"}},
		"slash":          {system{installers: debian}, []string{"--from", url + "/"}, []string{"apt-get --quiet update", "apt-get install --yes codehub_0.2.0-1_amd64.deb"}},
		"client":         {system{installers: debian}, []string{"--from", url, "--client"}, []string{"apt-get install --yes codehub-cli_0.2.0-1_amd64.deb"}},
		"newer client":   {system{installers: debian, codehub: "2"}, []string{"--from", url, "--client"}, []string{"apt-get install --yes codehub-cli_0.2.0-1_amd64.deb"}},
		"newer server":   {system{installers: []string{"rpm"}, codehub: "0"}, []string{"--from", url}, []string{"rpm --upgrade --replacepkgs codehub-0.2.0-1.x86_64.rpm"}},
		"arm64":          {system{installers: debian, processor: "aarch64"}, []string{"--client", "--from", url}, []string{"apt-get install --yes codehub-cli_0.2.0-1_arm64.deb"}},
		"version":        {system{installers: debian}, []string{"--from", url, "--client", "--version", "v0.2.0"}, []string{"apt-get install --yes --allow-downgrades codehub-cli_0.2.0-1_amd64.deb"}},
		"dnf":            {system{installers: []string{"dnf", "rpm"}}, []string{"--from", url}, []string{"dnf install --assumeyes codehub-0.2.0-1.x86_64.rpm"}},
		"dnf, later":     {system{installers: []string{"dnf", "rpm"}, later: true}, []string{"--from", url}, []string{"dnf upgrade --assumeyes codehub-0.2.0-1.x86_64.rpm"}},
		"dnf of version": {system{installers: []string{"dnf", "rpm"}, later: true}, []string{"--from", url, "--version", "0.2.0"}, []string{"dnf install --assumeyes codehub-0.2.0-1.x86_64.rpm"}},
		"rpm":            {system{installers: []string{"rpm"}}, []string{"--from", url}, []string{"rpm --upgrade --replacepkgs codehub-0.2.0-1.x86_64.rpm"}},
		"rpm of version": {system{installers: []string{"rpm"}}, []string{"--from", url, "--version", "0.2.0"}, []string{"rpm --upgrade --replacepkgs --oldpackage codehub-0.2.0-1.x86_64.rpm"}},
		"archive": {system{}, []string{"--from", url}, []string{"rm -rf /usr/local/share/codehub/clients",
			"tar -xzf codehub_0.2.0_linux_amd64.tar.gz -C /usr/local --strip-components=1 codehub_0.2.0_linux_amd64/bin codehub_0.2.0_linux_amd64/share"}},
		"client's archive":      {system{}, []string{"--from", url, "--client"}, []string{"tar -xzf codehub-cli_0.2.0_linux_amd64.tar.gz -C /usr/local/bin --strip-components=1 codehub-cli_0.2.0_linux_amd64/codehub"}},
		"sudo":                  {system{installers: []string{"rpm", "sudo"}, user: "1000"}, []string{"--from", url}, []string{"sudo rpm --upgrade --replacepkgs codehub-0.2.0-1.x86_64.rpm"}},
		"wget":                  {system{installers: debian, fetchers: []string{"wget"}}, []string{"--from", url, "--client"}, []string{"apt-get install --yes codehub-cli_0.2.0-1_amd64.deb"}},
		"commit after release":  {system{installers: debian}, []string{"--from", later, "--client"}, []string{"apt-get install --yes codehub-cli_0.2.0+5.gabcdef0-1_amd64.deb"}},
		"candidate":             {system{installers: []string{"rpm"}}, []string{"--from", candidate}, []string{"rpm --upgrade --replacepkgs codehub-0.3.0~rc.1-1.x86_64.rpm"}},
		"archive of candidate":  {system{}, []string{"--from", candidate, "--client"}, []string{"tar -xzf codehub-cli_0.3.0-rc.1_linux_amd64.tar.gz -C /usr/local/bin --strip-components=1 codehub-cli_0.3.0-rc.1_linux_amd64/codehub"}},
		"dry":                   {system{installers: debian}, []string{"--from", url, "--dry-run"}, nil},
		"dry, not root":         {system{installers: debian, user: "1000"}, []string{"--from", url, "--dry-run"}, nil},
		"processor with a name": {system{installers: debian, processor: "amd64"}, []string{"--from", url, "--client"}, []string{"apt-get install --yes codehub-cli_0.2.0-1_amd64.deb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, printed, err := installed(t, c.system, c.arguments...)
			if err != nil || strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("%v: it ran %q, want %q; it printed:\n%s", err, got, c.want, printed)
			}
		})
	}
}

func TestInstallScriptRefuses(t *testing.T) {
	t.Parallel()
	url := release(t, "0.2.0", "0.2.0")
	damaged := release(t, "0.2.0", "0.2.0", "codehub_0.2.0-1_amd64.deb")
	empty := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(empty.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	debian := []string{"apt-get"}
	for name, c := range map[string]struct {
		system    system
		arguments []string
		want      string
	}{
		"damaged file":         {system{installers: debian}, []string{"--from", damaged}, "codehub_0.2.0-1_amd64.deb is damaged"},
		"another version":      {system{installers: debian}, []string{"--from", url, "--version", "0.1.0"}, url + " has no codehub_0.1.0-1_amd64.deb: the release there is 0.2.0"},
		"system":               {system{kernel: "Darwin"}, []string{"--from", url}, "codehub's server runs on Linux"},
		"processor":            {system{processor: "riscv64"}, []string{"--from", url}, "there is no release for the processor riscv64"},
		"no release":           {system{installers: debian}, []string{"--from", empty.URL}, "could not fetch " + empty.URL + "/checksums.txt"},
		"no network":           {system{installers: debian}, []string{"--from", gone.URL}, "could not fetch " + gone.URL + "/checksums.txt"},
		"not root, no sudo":    {system{installers: debian, user: "1000"}, []string{"--from", url}, "run this as root, since there is no sudo"},
		"client beside server": {system{installers: debian, codehub: "0"}, []string{"--from", url, "--client"}, "codehub's server is installed here"},
		"nothing to fetch":     {system{installers: debian, fetchers: []string{}}, []string{"--from", url}, "curl or wget is needed"},
		"no address":           {system{installers: debian}, nil, "usage: install.sh --from URL"},
		"no version":           {system{installers: debian}, []string{"--from", url, "--version"}, "usage: install.sh --from URL"},
		"unknown option":       {system{installers: debian}, []string{"--from", url, "--force"}, "usage: install.sh --from URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, printed, err := installed(t, c.system, c.arguments...)
			if err == nil || len(got) > 0 || !strings.Contains(printed, c.want) {
				t.Errorf("%v: it ran %q and printed %q, want %q", err, got, printed, c.want)
			}
		})
	}
	// dnf installs nothing then, and succeeds.
	_, printed, err := installed(t, system{installers: []string{"dnf", "rpm"}, later: true, packages: "codehub-0.3.0-*"}, "--from", url)
	if err == nil || !strings.Contains(printed, "codehub was not changed: --version 0.2.0 also replaces a later version") {
		t.Errorf("with a later version that dnf keeps: %v, it printed:\n%s", err, printed)
	}
}
