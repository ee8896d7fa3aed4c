package docker

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"codehub/internal/workspace"
)

// A damaged home.json affects only its own home, which is not listed.
func TestDamagedSidecarAffectsOneHome(t *testing.T) {
	t.Parallel()
	r, err := New(t.Context(), Config{
		Installation: "0198c0de-0000-7000-8000-000000000001", DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	good, bad := workspace.ID("0198c0de-0000-7000-8000-00000000000a"), workspace.ID("0198c0de-0000-7000-8000-00000000000b")
	for _, id := range []workspace.ID{good, bad} {
		if err := os.MkdirAll(r.homePath(id), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := r.writeSidecar(id, sidecar{Claim: "claim", State: folderSeeded}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(r.folder(bad), "home.json"), []byte("{\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := r.folders()
	if err != nil {
		t.Fatal(err)
	}
	claims := map[workspace.ID]string{}
	for _, v := range found {
		claims[v.Workspace] = v.Claim
	}
	if claim, ok := claims[bad]; !ok || claim != "" || claims[good] != "claim" || len(claims) != 2 {
		t.Errorf("found %v", found)
	}
}
