package docker

import "codehub/internal/workspace"

// portURIEnv is the variable by which the IDE knows the addresses of ports, in which
// {{port}} stands for the port. Its port view and links in its terminals lead there.
const portURIEnv = "VSCODE_PROXY_URI"

// portEnv returns the environment of a workspace that names the addresses of its ports.
func (r *Runtime) portEnv(id workspace.ID) []string {
	if r.cfg.PortURI == nil {
		return nil
	}
	if uri := r.cfg.PortURI(id); uri != "" {
		return []string{portURIEnv + "=" + uri}
	}
	return nil
}
