package workspace

import "time"

// Access is what a guest may do with a workspace that its owner shares.
type Access string

// The kinds of access. AccessView shows the state of a workspace; AccessUse also lets the guest
// open and start it: the IDE, terminals, SSH and ports. Neither changes, stops, archives, deletes
// or shares it, nor shows its notes, environment variables, log and archives.
const (
	AccessView Access = "view"
	AccessUse  Access = "use"
)

// Valid reports whether the access is one of the kinds.
func (a Access) Valid() bool { return a == AccessView || a == AccessUse }

// Share is the access of a user or of a group to a workspace.
type Share struct {
	ID        string
	User      string // the username; empty: Group has the access
	UserID    string
	Group     string // the group's name; empty: User has the access
	GroupID   string
	Access    Access
	Git       bool // the owner's Git connections may be used in the workspace, also by these guests
	CreatedAt time.Time
}

// Guests are the users with access to a workspace that they do not own, by id. Nil: there are
// none.
type Guests map[string]Access

// Enters reports whether the caller may open a workspace: its owner, and guests who may use it, as
// far as the caller's token allows.
func (g Guests) Enters(caller Caller, ownerID string, id ID) bool {
	return caller.Uses(ownerID, id) || caller.UserID != "" && g[caller.UserID] == AccessUse && (caller.Only == "" || caller.Only == id)
}
