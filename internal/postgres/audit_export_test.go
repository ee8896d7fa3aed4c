package postgres_test

import (
	"context"
	"testing"
	"time"

	"codehub/internal/postgres"
)

// An export leaves out what may still be added before its end, and the next one has it.
func TestAuditExportsHaveEveryEntryOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	export := func(since time.Time) (until time.Time, actions map[string]int) {
		t.Helper()
		actions = map[string]int{}
		err := e.ExportAudit(ctx, boss, postgres.AuditFilter{Since: since}, func(at time.Time) { until = at }, func(a postgres.AuditEntry) error {
			actions[a.Action+" "+a.Target]++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return until, actions
	}
	late, err := e.raw.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.Background()) }() // does nothing after the commit
	if _, err := late.Exec(ctx, `INSERT INTO audit_log (username, action, target, details) VALUES ('ann', 'late', '', '{}')`); err != nil {
		t.Fatal(err)
	}
	w := e.workspace(ann, state{"phase": "STANDBY"})
	first, one := export(time.Time{})
	if err := late.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	second, two := export(first)
	if !second.After(first) {
		t.Errorf("the second export ends at %v, the first at %v", second, first)
	}
	for _, entry := range []string{"late ", "workspace.create " + string(w.ID)} {
		if one[entry]+two[entry] != 1 {
			t.Errorf("%s is %d times in the first export and %d times in the second", entry, one[entry], two[entry])
		}
	}
	if one["user.create "+ann.UserID] != 1 || two["user.create "+ann.UserID] != 0 || two["audit.export "] != 1 {
		t.Errorf("the first %v, the second %v", one, two)
	}
	// The log has the periods.
	if !query[bool](e, `SELECT (details ->> 'since')::timestamptz = $1 AND (details ->> 'until')::timestamptz = $2 FROM audit_log WHERE action = 'audit.export' ORDER BY id DESC LIMIT 1`, first, second) {
		t.Error("the entry of the export does not have its period")
	}
}
