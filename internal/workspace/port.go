package workspace

import "time"

// Visibility is who may open a port of a workspace.
type Visibility string

// The visibilities, from the narrowest to the widest.
const (
	VisibleOwner  Visibility = "owner"
	VisibleUsers  Visibility = "users"  // any user who is logged in
	VisiblePublic Visibility = "public" // any visitor
)

func (v Visibility) rank() int {
	switch v {
	case VisibleUsers:
		return 1
	case VisiblePublic:
		return 2
	}
	return 0
}

// AtMost returns the narrower of v and most. An unknown visibility is the owner's.
func (v Visibility) AtMost(most Visibility) Visibility {
	switch min(v.rank(), most.rank()) {
	case 1:
		return VisibleUsers
	case 2:
		return VisiblePublic
	}
	return VisibleOwner
}

// PortShare is a port of a workspace that its owner shares.
type PortShare struct {
	Port      int
	With      Visibility // VisibleUsers or VisiblePublic
	CreatedAt time.Time
	ExpiresAt *time.Time // nil: it does not end
}

// The ports in a workspace's container that are codehub's own: those of the IDE and the
// agent.
const (
	IDEPort   = 8080
	AgentPort = 61080
)

// ReservedPort reports whether a port is codehub's own, which is neither listed, nor
// opened, forwarded or shared.
func ReservedPort(port int) bool { return port == IDEPort || port == AgentPort }
