package postgres_test

import (
	"flag"
	"fmt"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/testing/pgtest"
)

var update = flag.Bool("update", false, "rewrite docs/database.md")

const databasePage = "../../docs/database.md"

// docs/database.md is testdata/database.md with the tables of a migrated database.
func TestDatabasePageIsCurrent(t *testing.T) {
	t.Parallel()
	head, err := os.ReadFile("testdata/database.md")
	if err != nil {
		t.Fatal(err)
	}
	want := string(head) + tablesText(t)
	if *update {
		if err := os.WriteFile(databasePage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(databasePage); err != nil || string(got) != want {
		t.Errorf("docs/database.md is not what the migrations and testdata/database.md say (%v); run go test -run TestDatabasePageIsCurrent ./internal/postgres -update", err)
	}
}

// documentedColumn is a column as docs/database.md shows it.
type documentedColumn struct {
	Table, About, Indexes, Name, Type, Default, Refers, Check, Comment string
	Null, Computed                                                     bool
}

const documentedColumns = `
	SELECT c.relname, COALESCE(obj_description(c.oid, 'pg_class'), ''),
		COALESCE((SELECT string_agg(CASE WHEN indisunique THEN 'unique ' ELSE '' END || substring(pg_get_indexdef(indexrelid) FROM ' USING btree \((.*?)\)(?: WHERE|$)') || CASE WHEN indpred IS NULL THEN '' ELSE ' …' END, '; ' ORDER BY indexrelid::regclass::text)
			FROM pg_index WHERE indrelid = c.oid AND NOT indisprimary), ''),
		a.attname, format_type(a.atttypid, a.atttypmod), COALESCE(pg_get_expr(d.adbin, d.adrelid), ''),
		COALESCE((SELECT confrelid::regclass::text FROM pg_constraint WHERE conrelid = c.oid AND contype = 'f' AND conkey = ARRAY[a.attnum]), ''),
		COALESCE((SELECT min(pg_get_constraintdef(oid)) FROM pg_constraint
			WHERE conrelid = c.oid AND contype = 'c' AND conkey = ARRAY[a.attnum] AND pg_get_constraintdef(oid) LIKE '% = ANY (ARRAY[%'), ''),
		COALESCE(col_description(c.oid, a.attnum), ''), NOT a.attnotnull AND c.relkind <> 'v', a.attgenerated <> ''
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
	WHERE c.relkind IN ('r', 'v') AND c.relnamespace = 'public'::regnamespace AND c.relname <> 'goose_db_version' AND a.attnum > 0 AND NOT a.attisdropped AND a.attname NOT IN ('only_row', 'one')
	ORDER BY c.relname <> 'workspaces', c.relname, a.attnum`

func tablesText(t *testing.T) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.New(t, postgres.Migrate))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), documentedColumns)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[documentedColumn])
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for len(columns) > 0 {
		n := 1
		for n < len(columns) && columns[n].Table == columns[0].Table {
			n++
		}
		writeTable(&b, columns[:n])
		columns = columns[n:]
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func writeTable(b *strings.Builder, columns []documentedColumn) {
	table := columns[0]
	fmt.Fprintf(b, "### %s\n\n%s\n", table.Table, linked(table.About))
	if table.Table == "workspaces" {
		by := postgres.ColumnWriters()
		for _, writer := range []string{"API layer", "controller", ""} {
			var its []documentedColumn
			for _, c := range columns {
				if by[c.Name] == writer {
					its = append(its, c)
				}
			}
			if writer == "" {
				b.WriteString("\nSet at the creation, or computed:\n")
			} else {
				fmt.Fprintf(b, "\nWritten by the %s:\n", writer)
			}
			writeColumns(b, its)
		}
	} else {
		writeColumns(b, columns)
	}
	if table.Indexes != "" {
		fmt.Fprintf(b, "\nIndexes: `%s`.\n", strings.NewReplacer("; ", "`, `", ", ", ",").Replace(shortSQL.Replace(table.Indexes)))
	}
	b.WriteString("\n")
}

// writeColumns writes a list of columns, in which those without a comment share a line.
func writeColumns(b *strings.Builder, columns []documentedColumn) {
	b.WriteString("\n")
	for i, c := range columns {
		switch {
		case i == 0 || c.Comment != "" || columns[i-1].Comment != "":
			b.WriteString("- ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(c.text())
		if c.Comment != "" || i == len(columns)-1 || columns[i+1].Comment != "" {
			b.WriteString("\n")
		}
	}
}

var (
	shortSQL = strings.NewReplacer("timestamp with time zone", "timestamptz", "character varying", "varchar", "::text", "", "::varchar", "", "::jsonb", "", "::interval", "", "::regclass", "", "::uuid[]", "")
	inDocs   = regexp.MustCompile(`docs/([a-z0-9/-]+\.md)(#[a-z-]+)?`)
	literals = regexp.MustCompile(`'([A-Za-z0-9_-]+)'::text[,\]]`)
)

func (c documentedColumn) text() string {
	s := "`" + c.Name + "` " + shortSQL.Replace(c.Type)
	if c.Null {
		s += "?"
	}
	switch {
	case c.Computed:
		s += " (computed)"
	case c.Default != "":
		s += "=" + shortSQL.Replace(c.Default)
	}
	if c.Refers != "" {
		s += " →" + c.Refers
	}
	if c.Check != "" {
		var values []string
		for _, m := range literals.FindAllStringSubmatch(c.Check, -1) {
			values = append(values, m[1])
		}
		s += " ∈ `" + strings.Join(values, "`, `") + "`"
	}
	if c.Comment != "" {
		s += ": " + linked(c.Comment)
	}
	return s
}

// linked makes links of the pages that a comment names.
func linked(s string) string {
	return inDocs.ReplaceAllStringFunc(s, func(at string) string {
		at = strings.TrimPrefix(at, "docs/")
		page, _, _ := strings.Cut(at, "#")
		name := strings.TrimSuffix(path.Base(page), ".md")
		if number, _, _ := strings.Cut(name, "-"); strings.HasPrefix(page, "adr/") {
			name = "ADR " + strings.TrimLeft(number, "0")
		}
		return "[" + name + "](" + at + ")"
	})
}

// docs/database.md has the advisory locks and the notification channels.
func TestLocksAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(databasePage)
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
