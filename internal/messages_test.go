package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// fieldProblems are the functions whose message follows a field's name.
var fieldProblems = map[string]bool{"fieldError": true}

// TestErrorMessagesAreSentences reads the messages of all coded errors: each is
// a sentence with a capital and a full stop, unless it begins with a name.
func TestErrorMessagesAreSentences(t *testing.T) {
	t.Parallel()
	found := 0
	check := func(at token.Position, message string, named bool) {
		found++
		first := []rune(message)[0]
		name := named || first == '%' || strings.HasPrefix(message, "codehub ") || strings.Contains(strings.Fields(message)[0], "_")
		if !name && !unicode.IsUpper(first) {
			t.Errorf("%s: the message %q does not begin with a capital", at, message)
		}
		if !strings.HasSuffix(message, ".") && !strings.HasSuffix(message, "%s") {
			t.Errorf("%s: the message %q does not end with a full stop", at, message)
		}
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "arrivals/importm1") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				name := nameOf(n.Fun)
				if (name == "Errorf" && qualifier(n.Fun) == "workspace" || fieldProblems[name]) && len(n.Args) > 1 {
					if s, ok := literal(n.Args[1]); ok {
						check(set.Position(n.Pos()), s, fieldProblems[name])
					}
				}
			case *ast.CompositeLit:
				if s, ok := n.Type.(*ast.SelectorExpr); !ok || s.Sel.Name != "Error" || qualifier(s) != "workspace" {
					return true
				}
				for _, e := range n.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok && nameOf(kv.Key) == "Message" {
						value := kv.Value
						if call, ok := value.(*ast.CallExpr); ok && nameOf(call.Fun) == "Sprintf" {
							value = call.Args[0]
						}
						if s, ok := literal(value); ok {
							check(set.Position(kv.Pos()), s, false)
						}
					}
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 60 {
		t.Errorf("found only %d messages", found)
	}
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func qualifier(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return nameOf(s.X)
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil && s != ""
}
