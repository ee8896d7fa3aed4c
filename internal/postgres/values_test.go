package postgres

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The JSON of any text from outside becomes storable as jsonb: the same text without NUL.
func FuzzStorableJSON(f *testing.F) {
	for _, s := range []string{"", "plain", "a\x00b", `\u0000`, `\\u0000`, "\\\x00", `"`, "\xff\x00", "<\x00>", "\x00\x00\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := json.Marshal(map[string]string{"k": s})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if err := json.Unmarshal(storableJSON(b), &got); err != nil {
			t.Fatalf("%q became %q: %v", b, storableJSON(b), err)
		}
		var whole map[string]string
		if err := json.Unmarshal(b, &whole); err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(whole["k"], "\x00", ""); got["k"] != want {
			t.Errorf("%q became %q, want %q", s, got["k"], want)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("a\x00b\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := clean(s)
		if strings.Contains(got, "\x00") || !utf8.ValidString(got) {
			t.Errorf("%q became %q", s, got)
		}
		if utf8.ValidString(s) && !strings.Contains(s, "\x00") && got != s {
			t.Errorf("%q was changed to %q", s, got)
		}
	})
}

// A cursor is untrusted input: it is either refused or valid.
func FuzzParseCursor(f *testing.F) {
	f.Add("")
	f.Add("eyJ0IjoiMjAzMC0wMS0wMVQwMDowMDowMFoiLCJpIjoiMDE5MGI1YTQtMDAwMC03MDAwLTgwMDAtMDAwMDAwMDAwMDAwIn0")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseCursor(s)
		if err != nil {
			return
		}
		again, err := parseCursor(p.cursor())
		if err != nil || !again.At.Equal(p.At) || again.ID != p.ID || again.Slot != p.Slot {
			t.Errorf("%v became %v (%v)", p, again, err)
		}
	})
}

func TestContaining(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{"": "%%", "a": "%a%", `50%_\`: `%50\%\_\\%`} {
		if d := cmp.Diff(want, containing(s)); d != "" {
			t.Error(d)
		}
	}
}
