package importm1

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"

	"codehub/internal/auth"
)

// maxName is how many characters a workspace's name may have.
const maxName = 255

// workspaceName brings a name to the form that names have here.
func workspaceName(old, id string) string {
	s := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, old)
	s = cut(norm.NFC.String(strings.TrimSpace(s)), maxName)
	if s == "" {
		return cut("workspace "+id, maxName)
	}
	return s
}

// suffixed is a name with a number behind it, as long as a name may be.
func suffixed(name string, n int) string {
	suffix := fmt.Sprintf(" (%d)", n)
	return cut(name, maxName-len(suffix)) + suffix
}

func cut(s string, characters int) string {
	if utf8.RuneCountInString(s) <= characters {
		return s
	}
	return strings.TrimSpace(string([]rune(s)[:characters]))
}

// uniqueNames gives each workspace the name it is to have among those of its
// owner that come over. The oldest of several keeps it, and nobody gets a name
// with a number that another one has by itself.
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

// username brings a username to the form that usernames have here, or returns
// "" if nothing of it is left.
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

// sameUsername is how usernames are compared: without regard to case.
func sameUsername(a, b string) bool { return folded(a) == folded(b) }

func folded(s string) string { return cases.Fold().String(norm.NFKC.String(s)) }
