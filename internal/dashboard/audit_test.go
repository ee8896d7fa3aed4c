package dashboard

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"codehub/internal/dashboard/catalogue"
)

// auditActions are the values of all constants whose names begin with Audit.
func auditActions(t *testing.T) []string {
	t.Helper()
	actions := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if source, err := os.ReadFile(path); err != nil || !strings.Contains(string(source), "Audit") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != len(spec.Names) {
				return true
			}
			for i, name := range spec.Names {
				if value, ok := spec.Values[i].(*ast.BasicLit); ok && strings.HasPrefix(name.Name, "Audit") && value.Kind == token.STRING {
					action, err := strconv.Unquote(value.Value)
					if err != nil {
						t.Fatal(err)
					}
					actions[action] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil || len(actions) < 40 {
		t.Fatalf("%d actions: %v", len(actions), err)
	}
	return slices.Sorted(maps.Keys(actions))
}

// Every action in the audit log has a text in all languages, and a choice of the filter that
// selects it.
func TestAuditActionsHaveTexts(t *testing.T) {
	t.Parallel()
	groups := auditForm{}.Groups()
	for _, action := range auditActions(t) {
		selected := slices.ContainsFunc(groups, func(g string) bool {
			return g == action || strings.HasSuffix(g, ".") && strings.HasPrefix(action, g)
		})
		if !selected {
			t.Errorf("no choice of the filter selects %s", action)
		}
		for _, l := range catalogue.Languages() {
			if !l.Has("audit." + action) {
				t.Errorf("%s has no text for %s", l.Code, action)
			}
		}
	}
	for _, g := range groups {
		if !catalogue.English.Has("audit.group." + g) {
			t.Errorf("the choice %s has no text", g)
		}
	}
}
