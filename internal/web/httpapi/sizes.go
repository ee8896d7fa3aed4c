package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func (s *server) listSizes(w http.ResponseWriter, _ *http.Request, _ auth.Identity) error {
	out := api.SizeList{Sizes: []api.Size{sizeView(s.cfg.Sizes.Default)}}
	for _, size := range s.cfg.Sizes.Offered {
		out.Sizes = append(out.Sizes, sizeView(size))
	}
	return writeJSON(w, http.StatusOK, out)
}

func sizeView(s workspace.Size) api.Size {
	return api.Size{Name: s.Name, CPUs: s.Cores(), MemoryBytes: s.Memory, DiskBytes: s.Disk}
}
