package lifecycle_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// docs/states.md gives the deadline of every operation and the state that follows its
// cancellation, and docs/settings.md the deadlines that are not settings.
func TestOperationsAreDocumented(t *testing.T) {
	t.Parallel()
	page := read(t, "../../../docs/states.md")
	policy := lifecycle.DefaultPolicy()
	for _, op := range workspace.Operations()[1:] {
		rule, _ := lifecycle.RuleOf(op)
		want := fmt.Sprintf("%.0f min", rule.Deadline(policy).Minutes())
		row := operationRow(page, op, rule)
		cells := strings.Split(row, " | ")
		if len(cells) < 6 {
			t.Errorf("docs/states.md has no row of %s", op)
			continue
		}
		if !strings.Contains(cells[4], want) {
			t.Errorf("docs/states.md: the deadline of %s is %s, not %q", op, want, cells[4])
		}
		if want := cmp.Or(string(rule.Cancelled), "–"); !regexp.MustCompile("^" + want + "( |,)").MatchString(cells[len(cells)-1]) {
			t.Errorf("docs/states.md: %s, cancelled, leads to %q, not %s", op, cells[len(cells)-1], want)
		}
		if progress := strings.Contains(cells[4], "without progress"); progress != (rule.Progress != lifecycle.ProgressOfPreparation) {
			t.Errorf("docs/states.md: whether progress restarts the deadline of %s: %q", op, cells[4])
		}
	}
	settings := read(t, "../../../docs/settings.md")
	for name, d := range map[string]float64{
		"stopping": policy.Stopping.Minutes(), "deleting": policy.Deleting.Minutes(),
		"no progress": policy.NoProgress.Minutes(),
	} {
		if want := fmt.Sprintf("%s | %.0f min |", name, d); rowOf(settings, want) == "" {
			t.Errorf("docs/settings.md has no row | %s", want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// rowOf is the first row of a table that begins with the text.
func rowOf(page, begins string) string {
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| "+begins) {
			return line
		}
	}
	return ""
}

func operationRow(page string, op workspace.Operation, rule lifecycle.Rule) string {
	from := string(rule.From)
	if from == "" {
		from = "any"
	}
	return rowOf(page, fmt.Sprintf("%s | %s → %s |", op, from, rule.To))
}
