package importm1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"codehub/internal/workspace"
)

func TestULIDTime(t *testing.T) {
	t.Parallel()
	// From the specification of ULIDs.
	if at, ok := ulidTime("01ARZ3NDEKTSV4RRFFQ69G5FAV"); !ok || at.UnixMilli() != 1469922850259 {
		t.Errorf("%v, %v", at, ok)
	}
	for _, bad := range []string{
		"", "01ARZ3NDEKTSV4RRFFQ69G5FA", "01ARZ3NDEKTSV4RRFFQ69G5FAVX", "81ARZ3NDEKTSV4RRFFQ69G5FAV",
		"01ARZ3NDEKTSV4RRFFQ69G5FAU", "01ARZ3NDEKTSV4RRFFQ69G5FA/", "01ARZ3NDEKTSV4RRFFQ69G5FÄ",
	} {
		if at, ok := ulidTime(bad); ok {
			t.Errorf("%q is a ULID of %v", bad, at)
		}
	}
}

// A new id is derived from the old one and the installation, keeps its time, and is unique.
func TestNewIDs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.StringMatching(`[0-7][0-9A-HJKMNP-TV-Z]{25}`), rapid.String())
		here, there := uuid.NewString(), uuid.NewString()
		a, b := id.Draw(t, "a"), id.Draw(t, "b")
		at := time.UnixMilli(rapid.Int64Range(-1, 1<<47).Draw(t, "at"))
		made := newID(here, "workspace", a, at)
		parsed, err := uuid.Parse(made)
		if err != nil || !workspace.ValidID(made) || parsed.Version() != 7 || parsed.Variant() != uuid.RFC4122 {
			t.Fatalf("%q becomes %q", a, made)
		}
		if made != newID(here, "workspace", a, at) {
			t.Fatal("it differs each time")
		}
		want := at
		if u, ok := ulidTime(a); ok {
			want = u
		}
		sec, nsec := parsed.Time().UnixTime()
		if got := time.Unix(sec, nsec).UnixMilli(); got != max(want.UnixMilli(), 0) {
			t.Fatalf("%q of %d becomes %q of %d", a, want.UnixMilli(), made, got)
		}
		if made == newID(there, "workspace", a, at) || made == newID(here, "user", a, at) || (a != b && made == newID(here, "workspace", b, at)) {
			t.Fatal("two objects have the same id")
		}
	})
}

func TestAddressable(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"01ARZ3NDEKTSV4RRFFQ69G5FAV": true, "a-b_c": true, strings.Repeat("x", 64): true,
		"": false, ".": false, "a/b": false, "a b": false, "é": false, "%41": false, strings.Repeat("x", 65): false,
	} {
		if addressable(id) != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
