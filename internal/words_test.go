package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	wordSpace = regexp.MustCompile(`\s+`)
	inCode    = regexp.MustCompile("`[^`\n]*`")
	inLink    = regexp.MustCompile(`\]\([^)\s]*\)`)
)

// TestWords looks for the words of scripts/words.txt in all texts that people
// read: the catalogue's English, help, error messages and documentation.
func TestWords(t *testing.T) {
	t.Parallel()
	words, allowed := readWords(t)
	var phrases []string
	for w := range words {
		phrases = append(phrases, strings.ReplaceAll(regexp.QuoteMeta(w), " ", `\s+`))
	}
	forbidden := regexp.MustCompile(`(?i)\b(?:` + strings.Join(phrases, "|") + `)\b`)
	read := 0
	check := func(file string, line int, text string) {
		read++
		for _, a := range allowed {
			text = strings.ReplaceAll(text, a, strings.Repeat("x", len(a)))
		}
		for _, at := range forbidden.FindAllStringIndex(text, -1) {
			word := text[at[0]:at[1]]
			found := strings.ToLower(wordSpace.ReplaceAllString(word, " "))
			t.Errorf("%s:%d: %q; use: %s", file, line+strings.Count(text[:at[0]], "\n"), word, words[found])
		}
	}
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		b, err := os.ReadFile("../" + name)
		if err != nil {
			continue // deleted
		}
		switch {
		case strings.HasSuffix(name, ".md"):
			check(name, 1, withoutCode(string(b)))
		case !strings.HasSuffix(name, "_test.go"):
			readTexts(t, name, b, func(line int, text string) { check(name, line, text) })
		}
	}
	if read < 500 {
		t.Errorf("found only %d texts", read)
	}
}

// riddles are words that comments and names of tests do not use: they say less than the
// noun in their place.
var (
	riddles     = regexp.MustCompile(`(?i)\b(?:whoever|somebody|anew|of late|hand(?:s|ed)? on|afresh)\b`)
	riddleNames = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)\w*(?:Nobody|Somebody|Whoever|Anew|Owes)`)
)

// TestComments looks for riddles in the comments and test names of all Go files.
func TestComments(t *testing.T) {
	t.Parallel()
	list, err := exec.Command("git", "-C", "..", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, name := range strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		b, err := os.ReadFile("../" + name)
		if err != nil {
			continue // deleted
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, b, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range file.Comments {
			for _, c := range group.List {
				read++
				if word := riddles.FindString(quotedInComment.ReplaceAllString(c.Text, `""`)); word != "" {
					t.Errorf("%s: the comment has %q; name the thing (docs/development.md)", set.Position(c.Pos()), word)
				}
			}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasSuffix(name, "_test.go") && riddleNames.MatchString(f.Name.Name) {
				t.Errorf("%s: %s does not name its subject (docs/development.md)", set.Position(f.Pos()), f.Name.Name)
			}
		}
	}
	if read < 5000 {
		t.Errorf("found only %d comments", read)
	}
}

// quotedInComment matches what a comment quotes.
var quotedInComment = regexp.MustCompile(`"[^"]*"|` + "`[^`]*`" + `|Recover\w+`)

func readWords(t *testing.T) (words map[string]string, allowed []string) {
	t.Helper()
	b, err := os.ReadFile("../scripts/words.txt")
	if err != nil {
		t.Fatal(err)
	}
	words = map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if phrase, ok := strings.CutPrefix(line, "allow "); ok {
			allowed = append(allowed, phrase)
		} else if word, instead, ok := strings.Cut(line, " = "); ok {
			words[word] = instead
		} else if line != "" && !strings.HasPrefix(line, "#") {
			t.Fatalf("scripts/words.txt: %q is no word", line)
		}
	}
	return words, allowed
}

// withoutCode blanks code in a page, and keeps its lines.
func withoutCode(page string) string {
	var out []string
	fence := false
	for _, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fence, line = !fence, ""
		}
		if fence {
			line = ""
		}
		out = append(out, line)
	}
	return inLink.ReplaceAllString(inCode.ReplaceAllString(strings.Join(out, "\n"), "`"), "]")
}

// readTexts calls found with each text for people in a Go file.
func readTexts(t *testing.T, name string, source []byte, found func(line int, text string)) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.HasSuffix(name, "catalogue/en.go") || strings.HasSuffix(name, "/messages.go")
	give := func(e ast.Expr) {
		if call, ok := e.(*ast.CallExpr); ok && nameOf(call.Fun) == "Sprintf" {
			e = call.Args[0]
		}
		if s, ok := literal(e); ok {
			found(set.Position(e.Pos()).Line, s)
		}
	}
	printed := strings.HasPrefix(name, "internal/cli/") // all of its texts are for users
	help := false
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if all || nameOf(n.Key) == "Message" || nameOf(n.Key) == "Help" {
				give(n.Value)
			}
		case *ast.ValueSpec:
			for _, v := range n.Values {
				if all {
					give(v)
				}
			}
		case *ast.BasicLit:
			if printed && n.Kind == token.STRING {
				if s, err := strconv.Unquote(n.Value); err == nil && strings.Contains(s, " ") {
					found(set.Position(n.Pos()).Line, s)
				}
			}
		case *ast.CallExpr:
			if name := nameOf(n.Fun); (name == "Errorf" && qualifier(n.Fun) == "workspace" || fieldProblems[name]) && len(n.Args) > 1 {
				give(n.Args[1])
			}
		case *ast.ReturnStmt:
			for _, v := range n.Results {
				if help {
					give(v)
				}
			}
		case *ast.FuncDecl:
			help = n.Name.Name == "Help"
		case *ast.Field:
			if n.Tag == nil {
				return true
			}
			tag, err := strconv.Unquote(n.Tag.Value)
			if help := reflect.StructTag(tag).Get("help"); err == nil && help != "" {
				found(set.Position(n.Tag.Pos()).Line, help)
			}
		}
		return true
	})
}
