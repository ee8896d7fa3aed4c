package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"codehub/client"
	"codehub/internal/cli/terminal"
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
