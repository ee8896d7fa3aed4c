package workspace

// Scope is what an API token may do for its user.
type Scope string

const (
	// ScopeRead reads the user's workspaces, and enters none.
	ScopeRead Scope = "read"
	// ScopeWorkspaces also changes and enters workspaces.
	ScopeWorkspaces Scope = "workspaces"
	// ScopeAdmin does everything that the user may do, administration included.
	ScopeAdmin Scope = "admin"
)

// ParseScope returns the scope of that name.
func ParseScope(s string) (Scope, bool) {
	switch scope := Scope(s); scope {
	case ScopeRead, ScopeWorkspaces, ScopeAdmin:
		return scope, true
	}
	return "", false
}

// includes reports whether a token of this scope may do what needs another one. The zero
// Scope, of callers without a token, includes all.
func (s Scope) includes(need Scope) bool {
	rank := func(s Scope) int {
		switch s {
		case ScopeRead:
			return 1
		case ScopeWorkspaces:
			return 2
		}
		return 3
	}
	return rank(s) >= rank(need)
}

// Permits returns CodeForbidden if the caller's token does not have the scope that an action needs, or
// is limited to another workspace than id. id is empty for actions that concern no
// single workspace: those that only read show what the token may see, and others need a
// token without such a limit. It is the only place where scopes are decided.
func (c Caller) Permits(need Scope, id ID) error {
	switch {
	case !c.Scope.includes(need):
		return Errorf(CodeForbidden, "The scope of this API token does not allow this.")
	case c.Only != "" && id != c.Only && (id != "" || need != ScopeRead):
		return Errorf(CodeForbidden, "This API token is for another workspace.")
	}
	return nil
}

// Limited reports whether the caller has an API token that may do less than its user.
func (c Caller) Limited() bool {
	return c.Token != "" && (!c.Scope.includes(ScopeAdmin) || c.Only != "")
}

// Uses reports whether the caller may act on a workspace: one of their own that is within
// the limits of their token.
func (c Caller) Uses(ownerID string, id ID) bool {
	return c.Owns(ownerID) && (c.Only == "" || c.Only == id)
}
