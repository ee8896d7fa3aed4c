package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
	"codehub/internal/workspace"
)

// A refusal names the start to free space if it would be accepted now.
func TestRefusalNamesStartToFreeSpace(t *testing.T) {
	t.Parallel()
	const offer = "Use: codehub start --free-space"
	for name, c := range map[string]struct {
		details map[string]any
		want    bool
	}{
		"accepted":       {map[string]any{"limit_type": "bytes", "free_space": true}, true},
		"not now":        {map[string]any{"limit_type": "home", "free_space": false}, false},
		"of another one": {map[string]any{"limit_type": "tokens"}, false},
	} {
		if got := messageOf(&client.Error{Code: "quota_exceeded", Message: "Too much.", Details: c.details}); strings.Contains(got, offer) != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// An error without a text is never silent, unless it is only the exit code of a program.
func TestErrorWithoutText(t *testing.T) {
	t.Parallel()
	for _, err := range []error{errors.New(""), &client.Error{Code: "unauthorized", Status: 401}, fmt.Errorf("%w", errors.New(" \n"))} {
		if got := messageOf(err); !strings.Contains(got, "no reason") {
			t.Errorf("%#v: %q", err, got)
		}
	}
	if got := messageOf(terminal.Exit(3, nil)); got != "" {
		t.Errorf("an exit code: %q", got)
	}
}

// An invalid field is named by the flag, and an error in the words of Docker is left to
// administrators.
func TestMessagesHaveWordsOfUsers(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{"standby_ttl_seconds": "--standby-ttl is wrong.", "port": "“Port” is wrong.", "cursor": "cursor is wrong."} {
		err := explain(&client.Error{Code: "invalid_request", Message: workspace.FieldLabel(field) + " is wrong.", Details: map[string]any{"field": field}})
		if err.Error() != want {
			t.Errorf("%s: %q, want %q", field, err, want)
		}
	}
	for _, reason := range workspace.ErrorReasons() {
		if slices.Contains(rawReasons, string(reason)) != reason.IsRaw() {
			t.Errorf("%s: the server and the command line differ", reason)
		}
	}
	const message = "image a: The registry r.example.com has no such image. manifest unknown: lookup failed"
	for reason, want := range map[string]string{"ImagePullFailed": "The registry r.example.com has no such image.", "Unrestorable": message} {
		if got := errorDetail(api.Workspace{ErrorReason: new(reason), ErrorMessage: new(message)}); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
	}
}
