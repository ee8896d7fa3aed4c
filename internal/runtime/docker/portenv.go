package docker

import (
	"codehub/internal/runtime/account"
	"codehub/internal/workspace"
)

// portEnv returns the environment of a workspace that names the addresses of its ports.
func (r *Runtime) portEnv(id workspace.ID) []string {
	if r.cfg.PortURI == nil {
		return nil
	}
	if uri := r.cfg.PortURI(id); uri != "" {
		return []string{account.PortURIEnv + "=" + uri}
	}
	return nil
}
