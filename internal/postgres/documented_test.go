package postgres_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/testing/pgtest"
)

// documentedTables returns the rows of the tables in docs/database.md, by table and column,
// without the column's name.
func documentedTables(t *testing.T) map[string]map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/database.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, table := map[string]map[string][]string{}, ""
	for line := range strings.Lines(string(page)) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "### "):
			table = strings.TrimPrefix(line, "### ")
			tables[table] = map[string][]string{}
		case strings.HasPrefix(line, "## "):
			table = ""
		case table != "" && strings.HasPrefix(line, "| "):
			cells := strings.Split(strings.Trim(line, "| "), " | ")
			if cells[0] != "column" && !strings.HasPrefix(cells[0], "---") {
				tables[table][strings.Trim(cells[0], "| ")] = cells[1:]
			}
		}
	}
	return tables
}

// docs/database.md has exactly the tables and columns of a migrated database.
func TestTablesAreDocumented(t *testing.T) {
	t.Parallel()
	dsn := pgtest.New(t, postgres.Migrate)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `
		SELECT table_name, column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name <> 'goose_db_version'`)
	if err != nil {
		t.Fatal(err)
	}
	documented := documentedTables(t)
	n := 0
	var table, column string
	_, err = pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		n++
		if _, ok := documented[table][column]; !ok {
			t.Errorf("docs/database.md does not have the column %s.%s", table, column)
		}
		delete(documented[table], column)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 100 {
		t.Errorf("the database has only %d columns", n)
	}
	for table, columns := range documented {
		for column := range columns {
			t.Errorf("docs/database.md has %s.%s, and the database does not", table, column)
		}
	}
}

// docs/database.md names the writer of every column of a workspace.
func TestWritersAreDocumented(t *testing.T) {
	t.Parallel()
	documented := documentedTables(t)["workspaces"]
	for column, writer := range postgres.ColumnWriters() {
		cells := documented[column]
		if len(cells) == 0 {
			t.Errorf("docs/database.md does not have the column workspaces.%s", column)
			continue
		}
		got := cells[0]
		if writer == "" && (got == "creation" || got == "computed") {
			continue
		}
		if got != writer {
			t.Errorf("docs/database.md: workspaces.%s is written by %q, not %q", column, writer, got)
		}
	}
}

// docs/database.md has the advisory locks and the notification channels.
func TestLocksAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/database.md")
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`0x636f6465687562[0-9a-f]{2}`)
	for _, dir := range []string{".", "../control/lease"} {
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
				continue
			}
			source, err := os.ReadFile(dir + "/" + f.Name())
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range key.FindAllString(string(source), -1) {
				if !strings.Contains(string(page), "| "+k+" |") {
					t.Errorf("docs/database.md does not have the lock %s of %s/%s", k, dir, f.Name())
				}
			}
		}
	}
	for _, channel := range []string{postgres.ChannelSSE, postgres.ChannelWake, postgres.ChannelDeleted, postgres.ChannelAuth} {
		if !strings.Contains(string(page), "| "+channel+" |") {
			t.Errorf("docs/database.md does not have the channel %s", channel)
		}
	}
}
