package importm1

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// workspaceName converts a name to a valid one.
func workspaceName(old, id string) string {
	s := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, old)
	s = cut(norm.NFC.String(strings.TrimSpace(s)), workspace.MaxName)
	if s == "" {
		return cut("workspace "+id, workspace.MaxName)
	}
	return s
}

// suffixed appends a number to a name, within the maximum length.
func suffixed(name string, n int) string {
	suffix := fmt.Sprintf(" (%d)", n)
	return cut(name, workspace.MaxName-len(suffix)) + suffix
}

func cut(s string, characters int) string {
	if utf8.RuneCountInString(s) <= characters {
		return s
	}
	return strings.TrimSpace(string([]rune(s)[:characters]))
}

// uniqueNames assigns names that are unique among an owner's imported
// workspaces. The oldest of several keeps the name, and no numbered name
// collides with another workspace's own name.
func uniqueNames(list []SourceWorkspace) map[string]string {
	type key struct{ owner, name string }
	taken := map[key]bool{}
	for _, w := range list {
		taken[key{w.OwnerID, workspaceName(w.Name, w.ID)}] = true
	}
	first := map[key]bool{}
	names := map[string]string{}
	for _, w := range list {
		name := workspaceName(w.Name, w.ID)
		if k := (key{w.OwnerID, name}); first[k] {
			for n := 2; taken[k]; n++ {
				k.name = suffixed(name, n)
			}
			name = k.name
			taken[k] = true
		} else {
			first[k] = true
		}
		names[w.ID] = name
	}
	return names
}

// username converts a username to a valid one, or returns "" if nothing valid
// is left.
func username(old string) string {
	s := strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._@-", r) {
			return r
		}
		return '-'
	}, norm.NFC.String(strings.TrimSpace(old)))
	s = strings.TrimLeft(s, "._@-")
	if r := []rune(s); len(r) > 64 {
		s = string(r[:64])
	}
	if auth.CheckUsername(s) != nil {
		return ""
	}
	return s
}

// sameUsername compares usernames without regard to case.
func sameUsername(a, b string) bool { return folded(a) == folded(b) }

func folded(s string) string { return cases.Fold().String(norm.NFKC.String(s)) }
