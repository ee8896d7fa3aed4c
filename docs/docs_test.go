// Package docs_test checks the pages in this folder: links lead somewhere, files
// that are named exist, and examples are valid.
package docs_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// pages returns every page for people by its path from this folder.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "adr/*.md", "../*.md", "../bench/*.md"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out[path] = string(text)
		}
	}
	if len(out) < 30 {
		t.Fatalf("only %d pages found", len(out))
	}
	return out
}

var fenced = regexp.MustCompile("(?ms)^```.*?^```")

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(fenced.ReplaceAllString(page, "")) {
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if level == 0 || !strings.HasPrefix(line[level:], " ") {
			continue
		}
		var b strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(line[level:])) {
			switch {
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				b.WriteRune(r)
			case r == ' ':
				b.WriteRune('-')
			}
		}
		out[b.String()] = true
	}
	return out
}

// Every relative link leads to a file, and to a heading if it names one.
func TestLinksResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	all := pages(t)
	for path, page := range all {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = strings.TrimPrefix(filepath.Join(filepath.Dir(path), file), "../docs/")
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
				continue
			}
			if anchor != "" && !anchors(all[target])[anchor] {
				t.Errorf("%s: the link %s names no heading of %s", path, m[1], target)
			}
		}
	}
}

// Comments and messages in the source cite pages and headings that exist.
func TestCitationsResolve(t *testing.T) {
	t.Parallel()
	section := regexp.MustCompile(`design §\S*|\bdesign\.md`)
	cited := regexp.MustCompile(`docs/((?:adr/)?[a-zA-Z0-9-]+\.md)(?:#([a-z0-9-]+))?`)
	all := pages(t)
	found := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if name := d.Name(); path != ".." && (strings.HasPrefix(name, ".") || name == "docs" || name == "bin" || name == "test-output" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		case !slices.Contains([]string{".go", ".sql", ".sh", ".js", ".html", ".txt"}, filepath.Ext(path)) && d.Name() != "Makefile":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if other := section.Find(source); other != nil && filepath.Base(path) != "docs_test.go" {
			t.Errorf("%s cites a document that is not in the repository: %s", path, other)
		}
		for _, m := range cited.FindAllStringSubmatch(string(source), -1) {
			found++
			page, ok := all[m[1]]
			if !ok {
				t.Errorf("%s cites docs/%s, which does not exist", path, m[1])
			} else if m[2] != "" && !anchors(page)[m[2]] {
				t.Errorf("%s cites the heading %s of docs/%s, which does not exist", path, m[2], m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 10 {
		t.Errorf("only %d citations found", found)
	}
}

// Every page is reached from the index, and from the README.
func TestPagesAreListed(t *testing.T) {
	t.Parallel()
	all := pages(t)
	for path := range all {
		if strings.Contains(path, "/") || path == "README.md" {
			continue
		}
		if !strings.Contains(all["README.md"], "]("+path+")") {
			t.Errorf("docs/README.md does not list %s", path)
		}
	}
}

// Files and folders of the source that pages name exist.
func TestNamedFilesExist(t *testing.T) {
	t.Parallel()
	named := regexp.MustCompile("`((?:internal|cmd|api|client|images|scripts|bench|deploy)/[A-Za-z0-9_./-]+|[a-z_]+\\.go)`")
	found := 0
	for path, page := range pages(t) {
		if strings.HasPrefix(path, "adr/") || strings.HasSuffix(path, "CHANGELOG.md") {
			continue // of their time
		}
		for line := range strings.Lines(page) {
			folder := ""
			for _, m := range named.FindAllStringSubmatch(line, -1) {
				file := m[1]
				if strings.Contains(file, "/") {
					if folder = file; filepath.Ext(file) != "" {
						folder = filepath.Dir(file)
					}
				} else if folder == "" {
					continue
				} else {
					file = filepath.Join(folder, file) // beside the last one of the line
				}
				found++
				if _, err := os.Stat(filepath.Join("..", file)); err != nil {
					t.Errorf("%s names %s, which does not exist", path, file)
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d files are named", found)
	}
}

// Every metric, check of /readyz and condition is in monitoring.md.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	page := pages(t)["monitoring.md"]
	metric := regexp.MustCompile(`(?:NewDesc\(|Name: )"(codehub_[a-z_]+)"`)
	check := regexp.MustCompile(`\{Name: "([a-z-]+)", (?:Advisory|Run):`)
	condition := regexp.MustCompile(`(?:condition\(|Name: )"([a-z-]+)", (?:Failing: )?"`)
	found := map[string]bool{}
	err := filepath.WalkDir("../internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, pattern := range []*regexp.Regexp{metric, check, condition} {
			for _, m := range pattern.FindAllStringSubmatch(string(source), -1) {
				found[m[1]] = true
				if !strings.Contains(page, "`"+m[1]+"`") && !strings.Contains(page, "`"+m[1]+"{") {
					t.Errorf("monitoring.md does not have %s of %s", m[1], path)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 32 {
		t.Errorf("only %d metrics, checks and conditions found", len(found))
	}
}

// images.md gives the versions that the images are built from.
func TestImageVersionsAreDocumented(t *testing.T) {
	t.Parallel()
	var build []byte
	for _, name := range []string{"../images/ide/build.sh", "../images/debian.sh"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		build = append(build, text...)
	}
	page := pages(t)["images.md"]
	for pattern, format := range map[string]string{`(?m)^code_server=(\d+\.\d+)`: "code-server ", `(?m)^node=(\d+)`: "Node "} {
		m := regexp.MustCompile(pattern).FindSubmatch(build)
		if m == nil {
			t.Errorf("the builds have no line like %s", pattern)
		} else if want := format + string(m[1]); !strings.Contains(page, want+" ") && !strings.Contains(page, want+",") {
			t.Errorf("images.md does not have %s", want)
		}
	}
}

// example returns the first code block of a language on a page.
func example(t *testing.T, page, language string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```"+language+"\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatalf("%s has no example in %s", page, language)
	}
	return block
}

// check runs a program on the example.
func check(t *testing.T, name, content string, command func(path string) []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	args := command(path)
	if _, err := exec.LookPath(args[0]); err != nil {
		t.Fatalf("scripts/setup.sh check installs it: %v", err)
	}
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil || strings.Contains(string(out), name+":") {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
}

// The unit of the package is valid, also as the page changes it for root: no setting remains that
// hides the machine's mounts and devices.
func TestUnitIsValid(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/package/codehub.service")
	if err != nil {
		t.Fatal(err)
	}
	asRoot := example(t, "install.md", "ini")
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "=")
		if (strings.HasPrefix(name, "Private") || strings.HasPrefix(name, "Protect")) && !strings.Contains(asRoot, "\n"+name+"=") {
			t.Errorf("install.md leaves %s for root", name)
		}
	}
	unit := strings.Replace(string(text), "ExecStart=/usr/bin/codehub serve", "ExecStart=/bin/true serve", 1) // it has to exist
	if unit == string(text) {
		t.Error("the unit does not start the server")
	}
	for _, change := range []string{"", asRoot} {
		check(t, "codehub.service", unit+change, func(path string) []string {
			return []string{"systemd-analyze", "verify", "--man=no", path}
		})
	}
}

func TestCaddyfileIsValid(t *testing.T) {
	t.Parallel()
	check(t, "Caddyfile", example(t, "https.md", "caddyfile"), func(path string) []string {
		return []string{"caddy", "adapt", "--adapter", "caddyfile", "--config", path}
	})
}
