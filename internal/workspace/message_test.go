package workspace_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"codehub/internal/workspace"
)

func TestCutBoundsMessages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ in, want string }{
		"short":           {"no such volume", "no such volume"},
		"full":            {strings.Repeat("a", workspace.MaxMessage), strings.Repeat("a", workspace.MaxMessage)},
		"invalid":         {"a\xffb", "a\uFFFDb"},
		"long":            {strings.Repeat("a", 50<<10), strings.Repeat("a", workspace.MaxMessage-len("… (cut)")) + "… (cut)"},
		"inside a letter": {strings.Repeat("é", 50<<10), strings.Repeat("é", (workspace.MaxMessage-len("… (cut)"))/2) + "… (cut)"},
	} {
		if got := workspace.Cut(tc.in); got != tc.want {
			t.Errorf("%s: %d bytes, ending %q", name, len(got), got[max(0, len(got)-20):])
		}
	}
	got := workspace.Cut(strings.Repeat("a\xff", workspace.MaxMessage/2))
	if len(got) > workspace.MaxMessage || !utf8.ValidString(got) || !strings.HasSuffix(got, "… (cut)") {
		t.Errorf("invalid and long: %d bytes", len(got))
	}
	if again := workspace.Cut(got); again != got {
		t.Error("a message that was cut is cut again")
	}
}
