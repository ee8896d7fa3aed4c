package ports

import (
	"fmt"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
)

// Settings limit with whom the owners of workspaces share ports, as codehub serve
// declares it.
type Settings struct {
	PortVisibilityMax string        `name:"port-visibility-max" env:"CODEHUB_PORT_VISIBILITY_MAX" default:"owner" help:"With whom owners may share a port: owner (no other user), users, or public."`
	PortShareMax      time.Duration `name:"port-share-max" env:"CODEHUB_PORT_SHARE_MAX" min:"1m" max:"8760h" default:"168h" help:"Longest time for which a port may be public."`
	PublicRequests    int           `name:"public-port-requests" env:"CODEHUB_PUBLIC_PORT_REQUESTS" min:"1" max:"1000000" default:"64" help:"Requests to public ports from one address at a time; one port takes 8 times as many."`
	PublicRate        int           `name:"public-port-rate" env:"CODEHUB_PUBLIC_PORT_RATE" min:"1" max:"1000000" default:"50" help:"Requests per second to public ports from one address; one port takes 8 times as many."`
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	switch workspace.Visibility(s.PortVisibilityMax) {
	case "", workspace.VisibleOwner, workspace.VisibleUsers, workspace.VisiblePublic:
		return nil
	}
	return setting.Invalid("CODEHUB_PORT_VISIBILITY_MAX", fmt.Sprintf("%q is not known", s.PortVisibilityMax), "use owner, users or public")
}

// Most is the widest visibility that a share has an effect with.
func (s *Settings) Most() workspace.Visibility {
	if s.PortVisibilityMax == "" {
		return workspace.VisibleOwner
	}
	return workspace.Visibility(s.PortVisibilityMax)
}
