package auth

import (
	"testing"
	"time"

	"codehub/internal/workspace"
)

// TestInvitationNeedsPasswordLogins: where users log in with identity providers alone, an invitation opens
// nothing, also one from before.
func TestInvitationNeedsPasswordLogins(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	secret, hash, err := e.NewInvitation()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.DB.Invite(t.Context(), workspace.System, e.user.ID, hash); err != nil {
		t.Fatal(err)
	}
	e.noPasswords = true
	if _, _, err := e.NewInvitation(); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Errorf("a new one: %v", err)
	}
	if _, err := e.Invited(t.Context(), secret, from); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Errorf("it shows its user: %v", err)
	}
	if _, err := e.AcceptInvitation(t.Context(), secret, "another password", from); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Errorf("it sets a password: %v", err)
	}
}

// TestWrongInvitationsAreDelayed: wrong secrets of a source take turns and are refused late, and lock out no
// one who has a right one.
func TestWrongInvitationsAreDelayed(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "http://localhost:8080")
	e.refusalInterval = 20 * time.Millisecond
	secret, hash, err := e.NewInvitation()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.DB.Invite(t.Context(), workspace.System, e.user.ID, hash); err != nil {
		t.Fatal(err)
	}
	const tries = 10
	began, done := time.Now(), make(chan error, tries)
	for range tries {
		go func() {
			_, err := e.Invited(t.Context(), "wrong", from)
			done <- err
		}()
	}
	for range tries {
		if err := <-done; workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("a wrong secret: %v", err)
		}
	}
	if took := time.Since(began); took < tries*e.refusalInterval {
		t.Errorf("%d wrong secrets took %v", tries, took)
	}
	if name, err := e.Invited(t.Context(), secret, from); name != "ann" || err != nil {
		t.Errorf("a right one: %q, %v", name, err)
	}
}
