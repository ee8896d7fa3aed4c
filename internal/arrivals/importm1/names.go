package importm1

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"

	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// workspaceName converts a name to a valid one.
func workspaceName(old, id string) string {
	s := strings.Map(func(r rune) rune {
		if workspace.Unprintable(r) {
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

func cut(s string, characters int) string {
	if r := []rune(s); len(r) > characters {
		return strings.TrimSpace(string(r[:characters]))
	}
	return s
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
	s = cut(strings.TrimLeft(s, "._@-"), 64)
	if auth.CheckUsername(s) != nil {
		return ""
	}
	return s
}

// addressable reports whether an old id is valid in a path and can be
// redirected; every ULID is.
func addressable(old string) bool {
	return old != "" && len(old) <= 64 && !strings.ContainsFunc(old, func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_'
	})
}
