package maintenance

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"codehub/internal/arrivals"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
)

// An import needs one selection, and the token in a variable; a wrong use opens no database.
func TestImportCommandUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args  string
		token string
		want  string
	}{
		{"--all", "", "CODEHUB_IMPORT_TOKEN"},
		{"", "chub_secret", "--workspace"},
		{"--all --user ann", "chub_secret", "--user"},
		{"--all --from ftp://x", "chub_secret", "--from"},
		{"--all --token chub_secret", "", "unknown flag"},
		{"--all --homes x", "chub_secret", "--homes"},
	} {
		data := filepath.Join(t.TempDir(), "data")
		args := append([]string{"import", "installation", "--from", "http://localhost:1"}, strings.Fields(c.args)...)
		cmd := exec.CommandContext(t.Context(), "codehub", args...)
		cmd.Env = append(os.Environ(), "CODEHUB_DATA_DIR="+data, "CODEHUB_IMPORT_TOKEN="+c.token)
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

func TestImportReport(t *testing.T) {
	t.Parallel()
	evil := "evil\x1b[2J\u202e\nx"
	text := importText(arrivals.Report{
		DryRun: true, Left: 1, Warnings: []string{evil},
		Users:      []arrivals.User{{OldName: evil, Result: arrivals.Added, Notes: []string{evil}}},
		Workspaces: []arrivals.Workspace{{OldName: evil, Owner: evil, Result: arrivals.Left, Reason: evil}, {Name: "a", OldName: evil, Result: arrivals.Added, Home: &arrivals.Home{Size: 1 << 20, Skipped: 2}}},
	})
	if strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, "\nx") {
		t.Errorf("%q", text)
	}
	for _, want := range []string{"1 workspaces would be added", "1 items left", "2 sockets"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	results := func(dryRun bool) (list []string) {
		text := importText(arrivals.Report{
			DryRun: dryRun, Left: 1,
			Users: []arrivals.User{{OldName: "ann", Result: arrivals.Added}, {OldName: "bob", Result: arrivals.Joined}, {OldName: "cyd", Result: arrivals.Already}},
			Workspaces: []arrivals.Workspace{
				{Owner: "ann", OldName: "a", Result: arrivals.Added}, {Owner: "bob", OldName: "b", Result: arrivals.Already}, {Owner: "bob", OldName: "c", Result: arrivals.Left, Reason: "x"},
			},
		})
		for line := range strings.Lines(text) {
			list = append(list, strings.Join(strings.Fields(line), " "))
		}
		return list
	}
	for dryRun, want := range map[bool][]string{
		true:  {"ann would be added", "bob would be joined", "cyd already", "ann a would be added", "bob b already", "bob c left x"},
		false: {"ann added", "bob joined", "cyd already", "ann a added", "bob b already", "bob c left x"},
	} {
		got := results(dryRun)
		for _, line := range want {
			if !slices.Contains(got, line) {
				t.Errorf("dry run %t: no %q in %q", dryRun, line, got)
			}
		}
	}
}

func TestImportFirstVersion(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			from := pgtest.New(env.T().(testing.TB), nil)
			conn, err := pgx.Connect(context.Background(), from)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			for _, name := range []string{"m1_schema.sql", "m1_rows.sql"} {
				sql, err := os.ReadFile(filepath.Join("..", "..", "arrivals", "importm1", "testdata", name))
				if err != nil {
					return err
				}
				if _, err := conn.Exec(context.Background(), strings.ReplaceAll(string(sql), "@", "SCR1PT")); err != nil {
					return err
				}
			}
			env.Setenv("FROM", from)
			env.Setenv("CODEHUB_DATABASE_URL", pgtest.New(env.T().(testing.TB), nil))
			env.Setenv("CODEHUB_DATA_DIR", filepath.Join(env.WorkDir, "data"))
			env.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
