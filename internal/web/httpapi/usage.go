package httpapi

import (
	"context"
	"net/http"
	"time"

	"codehub/api"
	"codehub/internal/running/attach"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// usageTimeout bounds the response time of an agent.
const usageTimeout = 5 * time.Second

// usage returns the usage of a running workspace. It neither counts as activity nor starts a
// workspace.
func (s *server) usage(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	if ws.Phase != workspace.PhaseRunning {
		return workspace.Errorf(workspace.CodeNotRunning, "The workspace is not running.")
	}
	ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
	defer cancel()
	load, err := s.cfg.Attach.Load(ctx, ws.ID)
	if err != nil {
		return ofAgent(ctx, err)
	}
	return writeJSON(w, http.StatusOK, usageOf(load, lifecycle.SpaceOf(ws, s.cfg.Sizes)))
}

func usageOf(l attach.Load, home lifecycle.HomeSpace) api.Usage {
	u := api.Usage{
		CPU: l.CPU, CPULimit: l.CPULimit, Memory: l.Memory, MemoryLimit: l.MemoryLimit,
		DiskSize: home.Limit, Processes: l.Processes, Holders: []api.Holder{},
	}
	if home = home.OnFileSystem(l.Disk, l.DiskSize); home.Measured {
		u.Disk = &home.Used
	}
	for _, h := range l.Holders {
		u.Holders = append(u.Holders, api.Holder{What: h.What, Since: time.Unix(h.Since, 0).UTC()})
	}
	return u
}
