package cli

import (
	"strings"
	"testing"

	"codehub/client"
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
