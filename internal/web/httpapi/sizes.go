package httpapi

import (
	"net/http"

	"codehub/api"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

func (s *server) listSizes(w http.ResponseWriter, _ *http.Request, _ auth.Identity) error {
	return writeJSON(w, http.StatusOK, api.SizeList{Sizes: append([]api.Size{sizeView(s.cfg.Sizes.Default)}, each(s.cfg.Sizes.Offered, sizeView)...)})
}

func sizeView(s workspace.Size) api.Size {
	return api.Size{Name: s.Name, CPUs: s.Cores(), MemoryBytes: s.Memory, DiskBytes: s.Disk}
}
