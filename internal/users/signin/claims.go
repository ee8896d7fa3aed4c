package signin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"codehub/internal/workspace"
)

// claimSet is what an ID token or the UserInfo endpoint says about a subject.
type claimSet map[string]json.RawMessage

// find returns a claim by its name, or by a path of names such as realm_access.roles.
func (c claimSet) find(name string) (json.RawMessage, bool) {
	if v, ok := c[name]; ok {
		return v, string(v) != "null"
	}
	first, rest, nested := strings.Cut(name, ".")
	if v, ok := c[first]; nested && ok {
		var inner claimSet
		if json.Unmarshal(v, &inner) == nil {
			return inner.find(rest)
		}
	}
	return nil, false
}

// text returns a claim that is a string; empty if there is none.
func (c claimSet) text(name string) string {
	var s string
	if v, ok := c.find(name); ok && json.Unmarshal(v, &s) == nil {
		return s
	}
	return ""
}

// maxAuthor is the length of a name or an e-mail address for commits, in bytes.
const maxAuthor = 254

// author returns a claim that can be a part of the author of a commit; empty if it cannot.
func (c claimSet) author(name string) string {
	s := norm.NFC.String(strings.TrimSpace(c.text(name)))
	if len(s) > maxAuthor || !utf8.ValidString(s) || strings.ContainsAny(s, "<>") || strings.ContainsFunc(s, unicode.IsControl) {
		return ""
	}
	return s
}

// email returns the e-mail address, unless the provider says that it is not verified.
func (c claimSet) email() string {
	s := c.author("email")
	if v, ok := c.find("email_verified"); ok && string(v) != "true" && string(v) != `"true"` || !strings.Contains(s, "@") || strings.ContainsFunc(s, unicode.IsSpace) {
		return ""
	}
	return s
}

// elsewhere reports whether the claim is one that the provider keeps elsewhere (OpenID
// Connect Core 5.6.2), for example because there are too many groups.
func (c claimSet) elsewhere(name string) bool {
	var names map[string]json.RawMessage
	if v, ok := c["_claim_names"]; ok && json.Unmarshal(v, &names) == nil {
		_, ok = names[name]
		return ok
	}
	return false
}

// groups returns the groups of a claim, a string or a list of them. No claim is no group.
func (c claimSet) groups(name string) ([]string, error) {
	v, ok := c.find(name)
	if !ok {
		if c.elsewhere(name) {
			return nil, fmt.Errorf("the provider leaves out the claim %s, because it is too long", name)
		}
		return nil, nil
	}
	var list []string
	if json.Unmarshal(v, &list) == nil {
		return list, nil
	}
	var one string
	if json.Unmarshal(v, &one) == nil {
		return []string{one}, nil
	}
	return nil, fmt.Errorf("the claim %s is neither a string nor a list of strings", name)
}

// access is what the groups of a subject permit.
type access struct {
	allowed bool
	admin   *bool // nil: the settings name no groups of administrators
}

// decide compares the subject's groups with the settings.
func (p ProviderConfig) decide(groups []string) access {
	in := func(wanted []string) bool {
		return slices.ContainsFunc(wanted, func(g string) bool { return slices.Contains(groups, g) })
	}
	var a access
	if len(p.AdminGroups) > 0 {
		admin := in(p.AdminGroups)
		a.admin = &admin
	}
	a.allowed = len(p.AllowedGroups) == 0 || in(p.AllowedGroups) || a.admin != nil && *a.admin
	return a
}

// needsGroups reports whether a decision depends on groups.
func (p ProviderConfig) needsGroups() bool { return len(p.AllowedGroups)+len(p.AdminGroups) > 0 }

const maxUsername = 64

// usernameOf makes a valid username of a claim's value: characters that a username does not
// have become hyphens. It is empty if no character is left.
func usernameOf(claim string) string {
	var b strings.Builder
	n := 0
	for _, r := range norm.NFC.String(strings.TrimSpace(strings.ToValidUTF8(claim, ""))) {
		letter := (unicode.IsLetter(r) || unicode.IsDigit(r)) && !workspace.Invisible(r)
		switch {
		case n == maxUsername:
		case letter, n > 0 && strings.ContainsRune("._@-", r):
			b.WriteRune(r)
			n++
		case n > 0 && !workspace.Invisible(r):
			b.WriteByte('-')
			n++
		}
	}
	return strings.TrimRight(b.String(), "-")
}
