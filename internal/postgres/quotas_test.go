package postgres_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func TestWorkspaceQuota(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Workspaces: 3}})
	ann, bob := e.user("ann"), e.user("bob")
	create := func(c workspace.Caller, name string) (workspace.Workspace, error) {
		return e.CreateWorkspace(t.Context(), c, newWorkspace(name, workspace.DesiredStandby))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var made []workspace.Workspace
	for i := range 12 {
		wg.Go(func() {
			w, err := create(ann, fmt.Sprint("w", i))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made = append(made, w)
			} else if workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(made) != 3 {
		t.Fatalf("%d of 12 concurrent creations succeeded, want 3", len(made))
	}
	if q := must(e.Quotas(t.Context(), ann))(t); q.Workspaces != 3 || q.MaxWorkspaces != 3 {
		t.Errorf("quotas %+v", q)
	}
	if _, err := create(bob, "one"); err != nil {
		t.Errorf("another user: %v", err)
	}
	// A deletion makes room, but not in a loop.
	created := 0
	for i := range 10 {
		must(e.DeleteWorkspace(t.Context(), ann, made[len(made)-1].ID, true))(t)
		w, err := create(ann, fmt.Sprint("again", i))
		if err != nil {
			wantCode(t, err, workspace.CodeQuotaExceeded)
			break
		}
		made = append(made, w)
		created++
	}
	if created != 3 {
		t.Errorf("%d workspaces could be created after deletions, want 3", created)
	}
}

func TestTokenQuota(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Tokens: 3}})
	ann := e.user("ann")
	n := 0
	create := func(expires *time.Time) error {
		n++
		_, err := e.CreateToken(t.Context(), ann, postgres.Token{Name: "ci", Hash: fmt.Appendf(nil, "%032d", n), ExpiresAt: expires})
		return err
	}
	soon := time.Now().Add(time.Hour)
	for range 3 {
		if err := create(&soon); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, create(nil), workspace.CodeQuotaExceeded)
	e.exec(`UPDATE api_tokens SET expires_at = now() - interval '1 second' WHERE hash = $1`, fmt.Appendf(nil, "%032d", 1))
	if err := create(nil); err != nil {
		t.Errorf("with an expired token: %v", err)
	}
	wantCode(t, create(nil), workspace.CodeQuotaExceeded)
	if q := must(e.Quotas(t.Context(), ann))(t); q.Tokens != 3 || q.MaxTokens != 3 {
		t.Errorf("quotas %+v", q)
	}
}

// Old entries of the audit log are removed in batches; the others stay.
func TestAuditRetention(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	e.exec(`INSERT INTO audit_log (at, username, action) SELECT now() - interval '2 days', 'old', 'login' FROM generate_series(1, 25)`)
	for _, want := range []int64{10, 10, 5, 0} {
		if n := must(e.DeleteOldAudit(t.Context(), 24*time.Hour, 10))(t); n != want {
			t.Errorf("%d entries removed, want %d", n, want)
		}
	}
	e.exec(`UPDATE audit_log SET at = now() - interval '25 hours'`)
	if n := must(e.DeleteOldAudit(t.Context(), 26*time.Hour, 10))(t); n != 0 {
		t.Errorf("%d entries removed that are kept", n)
	}
	if n := must(e.DeleteOldAudit(t.Context(), 24*time.Hour, 10))(t); n == 0 {
		t.Error("the creation of ", ann.Username, " is kept for ever")
	}
}
