package lifecycle_test

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"codehub/internal/testing/harness"
)

// table is one section of a file in testdata: rows of values that are asked
// for, and the answer. The notation is described in testdata/conditions.txt.
type table struct {
	name    string
	columns []string
	answers []string
	rules   []*rule
}

type rule struct {
	line   int
	match  []uint64 // for each column, the values it matches, as bits
	answer []string
	used   atomic.Bool
}

// domains are the values that a column can have.
type domains map[string][]string

func (d domains) index(t testing.TB, column, value string) uint8 {
	i := slices.Index(d[column], value)
	if i < 0 {
		t.Fatalf("%q is no value of %q", value, column)
	}
	return uint8(i)
}

// readTables reads every section of a file.
func readTables(t testing.TB, file string, d domains) map[string]*table {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]*table{}
	var cur *table
	s := bufio.NewScanner(f)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if name, ok := strings.CutPrefix(line, "["); ok {
			cur = &table{name: file + " [" + name}
			out[strings.TrimSuffix(name, "]")] = cur
			continue
		}
		in, answer, ok := strings.Cut(line, "|")
		if cur == nil || !ok {
			t.Fatalf("%s:%d: not a row of a table: %s", file, n, line)
		}
		if cur.columns == nil {
			cur.columns, cur.answers = strings.Fields(in), strings.Fields(answer)
			continue
		}
		cur.add(t, d, n, strings.Fields(in), strings.Fields(answer))
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func (tb *table) add(t testing.TB, d domains, line int, in, answer []string) {
	t.Helper()
	if len(in) != len(tb.columns) || len(answer) < len(tb.answers) {
		t.Fatalf("%s: line %d has %d columns and %d answers, want %d and %d", tb.name, line, len(in), len(answer), len(tb.columns), len(tb.answers))
	}
	r := &rule{line: line, answer: answer}
	for i, cell := range in {
		r.match = append(r.match, matching(t, d, tb.columns[i], cell))
	}
	tb.rules = append(tb.rules, r)
}

// matching is which values of the column a cell matches, as bits.
func matching(t testing.TB, d domains, column, cell string) (bits uint64) {
	t.Helper()
	values := d[column]
	if values == nil {
		t.Fatalf("no column is called %q", column)
	}
	list, none := strings.CutPrefix(cell, "!")
	for alternative := range strings.SplitSeq(list, ",") {
		hit := uint64(0)
		for i, v := range values {
			if prefix, ok := strings.CutSuffix(alternative, "*"); v == alternative || ok && strings.HasPrefix(v, prefix) {
				hit |= 1 << i
			}
		}
		if hit == 0 {
			t.Fatalf("%q is no value of %q", alternative, column)
		}
		bits |= hit
	}
	if none {
		bits = ^bits
	}
	return bits
}

// find returns the first rule that matches, or nil. Values come in the order
// of the columns, as indexes into their domains.
func (tb *table) find(values ...uint8) *rule {
next:
	for _, r := range tb.rules {
		for i, v := range values {
			if r.match[i]&(1<<v) == 0 {
				continue next
			}
		}
		if !r.used.Load() {
			r.used.Store(true)
		}
		return r
	}
	return nil
}

// allUsed fails for rows that answer nothing: they are wrong, or behind
// another row that takes all they are for. Thinned tests do not reach every row.
func allUsed(t *testing.T, tables map[string]*table) {
	t.Helper()
	if everyNth != 1 {
		return
	}
	for _, tb := range tables {
		for _, r := range tb.rules {
			if !r.used.Load() {
				t.Errorf("%s: the row in line %d is never used", tb.name, r.line)
			}
		}
	}
}

// only checks that a table has exactly these columns, in this order: the test
// that asks it relies on that.
func (tb *table) only(t testing.TB, columns ...string) *table {
	t.Helper()
	if tb == nil {
		t.Fatal("a table is missing")
	}
	if !slices.Equal(tb.columns, columns) {
		t.Fatalf("%s has the columns %v, want %v", tb.name, tb.columns, columns)
	}
	return tb
}

// thinned is coprime to the number of values of every column, so any two values occur
// together in every thinnedth combination too.
const thinned = 17

// everyNth is 1 where the exhaustive tests are exhaustive.
var everyNth = func() int {
	if harness.Verifying() {
		return 1
	}
	return thinned
}()

// cross calls f with every combination of values of the columns.
func cross(columns []string, f func(v []uint8)) { crossNth(columns, 1, f) }

// crossNth calls f with every nth combination.
func crossNth(columns []string, nth int, f func(v []uint8)) {
	v, n := make([]uint8, len(columns)), 0
	var from func(i int)
	from = func(i int) {
		if i < len(columns) {
			for v[i] = range uint8(len(words[columns[i]])) {
				from(i + 1)
			}
			return
		}
		if n++; n%nth == 0 {
			f(v)
		}
	}
	from(0)
}
