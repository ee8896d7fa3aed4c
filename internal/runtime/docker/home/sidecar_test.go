package home

import (
	"os"
	"path/filepath"
	"testing"

	"codehub/internal/workspace"
)

// A damaged home.json affects only its own home, which is not listed.
func TestDamagedSidecarAffectsOneHome(t *testing.T) {
	t.Parallel()
	r := newHomes(t, offline, Config{}, nil)
	good, bad := workspace.ID("0198c0de-0000-7000-8000-00000000000a"), workspace.ID("0198c0de-0000-7000-8000-00000000000b")
	for _, id := range []workspace.ID{good, bad} {
		check(t, os.MkdirAll(r.Path(id), 0o755))
		check(t, r.writeSidecar(id, sidecar{Claim: "claim", State: folderSeeded}))
	}
	check(t, os.WriteFile(filepath.Join(r.Folder(bad), "home.json"), []byte("{\x00"), 0o600))
	found, err := r.folders()
	check(t, err)
	claims := map[workspace.ID]string{}
	for _, v := range found {
		claims[v.Workspace] = v.Claim
	}
	if claim, ok := claims[bad]; !ok || claim != "" || claims[good] != "claim" || len(claims) != 2 {
		t.Errorf("found %v", found)
	}
}
