package maintenance

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"codehub/internal/arrivals/move"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness/fixture"
)

// move needs one selection, and the token in a variable; a wrong use opens no database.
func TestMoveCommandUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  string
		token string
		want  string
	}{
		{"--all", "", "CODEHUB_MOVE_TOKEN"},
		{"", "chub_secret", "--workspace"},
		{"--all --user ann", "chub_secret", "--user"},
		{"--all --from ftp://x", "chub_secret", "--from"},
		{"--all --token chub_secret", "", "unknown flag"},
	} {
		data := filepath.Join(t.TempDir(), "data")
		args := append([]string{"move", "--from", "http://localhost:1"}, strings.Fields(c.args)...)
		cmd := exec.CommandContext(t.Context(), "codehub", args...)
		cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+data, "CODEHUB_MOVE_TOKEN="+c.token)
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != terminal.ExitUsage || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "secret") {
			t.Errorf("%q: %v, %s", c.args, err, out)
		}
		if _, err := os.Stat(data); err == nil {
			t.Errorf("%q has made a data folder", c.args)
		}
	}
}

func TestAllowMovesCommand(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	c := bucketCommand{t, db.DSN, t.TempDir()}
	open := `SELECT COALESCE((SELECT moves_until FROM installation) BETWEEN now() + interval '59 minutes' AND now() + interval '61 minutes', false)`
	if out, errs, exit := c.run("allow-moves", "--for", "1h"); exit != terminal.ExitOK || !strings.Contains(out, "Moves are allowed until") || !fixture.Query[bool](db, open) {
		t.Errorf("exit %d: %s%s", exit, out, errs)
	}
	if out, errs, exit := c.run("allow-moves", "--for", "0"); exit != terminal.ExitOK || !strings.Contains(out, "no longer allowed") || fixture.Query[bool](db, open) {
		t.Errorf("exit %d: %s%s", exit, out, errs)
	}
	if n := fixture.Query[int](db, `SELECT count(*) FROM audit_log WHERE action = 'moves.allow' AND username = 'system'`); n != 2 {
		t.Errorf("%d audit entries", n)
	}
	if _, errs, exit := c.run("allow-moves", "--for", "-1h"); exit != terminal.ExitUsage {
		t.Errorf("exit %d: %s", exit, errs)
	}
	if _, errs, exit := (bucketCommand{t, "", t.TempDir()}).run("allow-moves"); exit != terminal.ExitUsage || !strings.Contains(errs, "no codehub has its database") {
		t.Errorf("exit %d: %s", exit, errs)
	}
}

func TestMoveReport(t *testing.T) {
	t.Parallel()
	evil := "evil\x1b[2J\u202e\nx"
	text := moveText(move.Report{
		DryRun: true, Left: 1,
		Users:      []move.User{{Username: evil, Result: move.Added, Notes: []string{evil}}},
		Workspaces: []move.Workspace{{Name: evil, Owner: evil, Result: move.Left, Reason: evil}, {Name: "a", Result: move.Moved, Home: &move.Home{Size: 1 << 20, Skipped: 2}}},
	})
	if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, "\nx") {
		t.Errorf("%q", text)
	}
	for _, want := range []string{"1 workspaces would be moved", "1 items left", "2 sockets"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	results := func(dryRun bool) (list []string) {
		text := moveText(move.Report{
			DryRun: dryRun, Left: 1,
			Users: []move.User{{Username: "ann", Result: move.Added}, {Username: "bob", Result: move.Joined}, {Username: "cyd", Result: move.Already}},
			Workspaces: []move.Workspace{
				{Owner: "ann", Name: "a", Result: move.Moved}, {Owner: "bob", Name: "b", Result: move.Already}, {Owner: "bob", Name: "c", Result: move.Left, Reason: "x"},
			},
		})
		for line := range strings.Lines(text) {
			list = append(list, strings.Join(strings.Fields(line), " "))
		}
		return list
	}
	for dryRun, want := range map[bool][]string{
		true:  {"ann would be added", "bob would be joined", "cyd already", "ann a would be moved", "bob b already", "bob c left x"},
		false: {"ann added", "bob joined", "cyd already", "ann a moved", "bob b already", "bob c left x"},
	} {
		got := results(dryRun)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("dry run %t: no %q in %q", dryRun, line, got)
			}
		}
	}
}
