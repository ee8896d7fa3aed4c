package postgres

import (
	"reflect"
	"testing"
	"unsafe"

	"codehub/internal/workspace"
)

// Every field of a workspace has exactly one column: without one, its value would be lost
// silently.
func TestEveryFieldHasOneColumn(t *testing.T) {
	t.Parallel()
	var w workspace.Workspace
	at := map[unsafe.Pointer][]string{}
	for _, c := range columns {
		p := reflect.ValueOf(c.field(&w)).UnsafePointer()
		at[p] = append(at[p], c.name+c.expr)
		if (c.name == "") == (c.expr == "") || c.by != noWriter && c.name == "" {
			t.Errorf("column %q has the expression %q, and is written by %d", c.name, c.expr, c.by)
		}
		if c.by == noWriter && (c.claim || c.quiet || c.value != nil || c.also != "") {
			t.Errorf("column %q is never written, and has rules for that", c.name)
		}
	}
	v := reflect.ValueOf(&w).Elem()
	for i := range v.NumField() {
		if got := at[v.Field(i).Addr().UnsafePointer()]; len(got) != 1 {
			t.Errorf("the field %s has the columns %q", v.Type().Field(i).Name, got)
		}
	}
	if len(at) != v.NumField() {
		t.Errorf("%d columns for %d fields", len(columns), v.NumField())
	}
}
