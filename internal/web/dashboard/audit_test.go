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

	"codehub/internal/web/dashboard/catalogue"

	"github.com/chromedp/chromedp"
)

// auditActions are the values of all constants whose names begin with Audit.
func auditActions(t *testing.T) []string {
	t.Helper()
	actions := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
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

// No id or action of the audit log is broken over two lines. The table scrolls instead.
func TestAuditLogKeepsWords(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(`INSERT INTO audit_log (username, action, target, details)
		SELECT 'ann', action, 'f9d1c5a2-7c1e-4b0a-9a53-0d6a4b1fe0c7', '{"archive_op_id": "0b0f2f5e-93a4-4c59-8a0e-2f2f6d0d5f6b", "image": "registry.example.com/team/workspace:2026-11-29", "to": "STANDBY"}'::jsonb
			|| CASE action WHEN 'workspace.hand_over_request' THEN '{"name": "a workspace"}'::jsonb ELSE '{}' END
		FROM unnest(ARRAY['workspace.hand_over_request', 'passkey.recovery_code_used']) action`)
	b := w.tab()
	b.logIn()
	for _, l := range []screen{{"wide", "light", "en-US,en", 1280, 860}, {"narrow", "light", "ko-KR,ko", 720, 860}, {"phone", "light", "en-US,en", 390, 844}} {
		b.as(l)
		b.visit("/admin/audit")
		b.shown(".table-audit")
		if l.name != "narrow" { // where the table scrolls
			b.shoot(t.ArtifactDir(), l, "audit-words")
		}
		broken := value(b, chromedp.Evaluate[string](`(() => {
			const walk = document.createTreeWalker(document.querySelector('.table-audit tbody'), NodeFilter.SHOW_TEXT), out = []
			while (walk.nextNode()) for (const m of walk.currentNode.data.matchAll(/\S+/g)) {
				const range = document.createRange()
				range.setStart(walk.currentNode, m.index)
				range.setEnd(walk.currentNode, m.index + m[0].length)
				if (m[0].length <= 36 && new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) out.push(m[0])
			}
			return out.join(' ')
		})()`))
		if broken != "" {
			t.Errorf("%s: broken over lines: %s", l.name, broken)
		}
	}
	text := value(b, chromedp.Evaluate[string](`[...document.getElementById('audit-days').options].map(o => o.text).join(', ')`))
	if want := "Any, Last 24 hours, Last 7 days, Last 30 days, Last 90 days"; text != want {
		t.Errorf("the periods are %s, want %s", text, want)
	}
}
