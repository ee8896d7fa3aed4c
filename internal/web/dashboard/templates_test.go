package dashboard

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"

	"golang.org/x/net/html"
)

// templateAction matches a template's actions.
var templateAction = regexp.MustCompile(`(?s)\{\{.*?\}\}`)

// spoken are the attributes with texts for users.
var spoken = map[string]bool{"title": true, "alt": true, "placeholder": true, "aria-label": true, "aria-description": true, "data-copied": true, "content": false}

func TestNoTextOutsideTheCatalogue(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil || len(names) < 10 {
		t.Fatalf("found %d templates, %v", len(names), err)
	}
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		source := templateAction.ReplaceAllString(string(b), "")
		source = strings.NewReplacer("<noscript>", "", "</noscript>", "").Replace(source) // its content is markup too
		for z := html.NewTokenizer(strings.NewReader(source)); ; {
			kind := z.Next()
			if kind == html.ErrorToken {
				break
			}
			tok := z.Token()
			if kind == html.TextToken && strings.ContainsFunc(tok.Data, unicode.IsLetter) {
				t.Errorf("%s: the text %q belongs in the catalogue", name, strings.TrimSpace(tok.Data))
			}
			for _, a := range tok.Attr {
				if spoken[a.Key] && strings.ContainsFunc(a.Val, unicode.IsLetter) {
					t.Errorf("%s: %s=%q belongs in the catalogue", name, a.Key, a.Val)
				}
			}
		}
	}
}

// Keys of the catalogue in templates and Go code.
var (
	templateKey = regexp.MustCompile(`\b[tn] "([a-z0-9_.-]+)"`)
	goKey       = regexp.MustCompile(`\b(?:T|N|fail)\((?:"?[a-z0-9_]+"?, )?"([a-z0-9_.-]+)"`)
	// prefix matches the beginning of a key that is composed at run time.
	prefix = regexp.MustCompile(`(?:print|T\(|Known\(|known|fail\([^,()]+,) ?"([a-z_]+\.(?:[a-z_]+\.)?)"`)
)

func TestTextsExistAndAreUsed(t *testing.T) {
	t.Parallel()
	used, prefixes := map[string]bool{}, []string{}
	read := func(path string, key *regexp.Regexp) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range key.FindAllStringSubmatch(string(b), -1) {
			used[m[1]] = true
		}
		for _, m := range prefix.FindAllStringSubmatch(string(b), -1) {
			prefixes = append(prefixes, m[1])
		}
	}
	for _, pattern := range []string{"templates/*.html", "*.go", "catalogue/catalogue.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %v", pattern, paths, err)
		}
		for _, p := range paths {
			if strings.HasSuffix(p, "_test.go") {
				continue
			}
			key := templateKey
			if strings.HasSuffix(p, ".go") {
				key = goKey
			}
			read(p, key)
		}
	}
	if len(used) < 50 || len(prefixes) < 5 {
		t.Fatalf("found only %d keys and %d prefixes", len(used), len(prefixes))
	}
	for _, text := range workspace.Texts {
		used["field."+text.Name] = true
	}
	l := catalogue.English
	for k := range used {
		if strings.HasSuffix(k, ".") || strings.HasPrefix(k, "/") || !strings.Contains(k, ".") && k != "brand" {
			continue
		}
		if !l.Has(k) && !l.Has(k+".other") {
			t.Errorf("there is no text %q", k)
		}
	}
	for _, k := range l.Keys() {
		base := strings.TrimSuffix(strings.TrimSuffix(k, ".one"), ".other")
		if used[k] || used[base] {
			continue
		}
		ok := false
		for _, p := range prefixes {
			ok = ok || strings.HasPrefix(k, p)
		}
		// newPage and showEntry compose these keys.
		if !ok && !strings.HasSuffix(k, ".title") && !strings.HasPrefix(k, "err.") && !strings.HasPrefix(k, "system.") && !strings.HasPrefix(k, "message.") {
			t.Errorf("the text %q is not used", k)
		}
	}
}

// Every script and style is a file, as the content policy requires. Only notices, which load
// nothing, have one style element, whose hash is in their policy (TestNotices).
func TestNoInlineScriptOrStyle(t *testing.T) {
	t.Parallel()
	names, _ := fs.Glob(files, "templates/*.html")
	inline := regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on|hx-vals='?js`)
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if name == "templates/part_notice.html" {
			// Pages on a workspace's host cannot load codehub's files.
			text = strings.Replace(text, "<style>{{.Style}}</style>", "", 1)
			text = strings.Replace(text, "<script>{{.Script}}</script>", "", 1)
		}
		if m := inline.FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// A second template of a name would take the place of the first.
func TestPartsHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	define := regexp.MustCompile(`{{define "([^"]+)"}}`)
	names, _ := fs.Glob(files, "templates/part_*.html")
	in := map[string]string{}
	for _, name := range names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range define.FindAllStringSubmatch(string(b), -1) {
			if other, ok := in[m[1]]; ok {
				t.Errorf("%s and %s define %q", other, name, m[1])
			}
			in[m[1]] = name
		}
	}
}

// Each page parses: a server parses it when it is first shown.
func TestPagesParse(t *testing.T) {
	t.Parallel()
	for lang, set := range parsePages(embeddedAssets(), false, "Docker", func(string, string) {}) {
		if len(set.pages) < 20 {
			t.Errorf("%s has %d pages", lang, len(set.pages))
		}
		for name, page := range set.pages {
			if page().Lookup("content") == nil {
				t.Errorf("%s: %s has no content", lang, name)
			}
		}
	}
}
