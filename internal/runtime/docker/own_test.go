package docker

import (
	"archive/tar"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// The server gives a home to its workspace itself, or by the helper, with the same result.
func TestOwnHomeHereAndByHelper(t *testing.T) {
	t.Parallel()
	here, away := newRuntime(t, nil), newRuntime(t, nil)
	away.remote = true // as for a server that is not root on Docker's host
	for name, r := range map[string]*Runtime{"here": here, "by the helper": away} {
		for _, storage := range []string{workspace.StorageDockerVolume, workspace.StorageLocalDir} {
			t.Run(name+", "+storage, func(t *testing.T) {
				t.Parallel()
				spec := newHome()
				spec.Image = variant(t, r, nil,
					tar.Header{Name: "home/coder/", Typeflag: tar.TypeDir, Mode: 0o700},
					tar.Header{Name: "home/coder/setuid", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 1000, Gid: 1000},
					tar.Header{Name: "home/coder/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd", Mode: 0o777},
					tar.Header{Name: "home/coder/foreign", Typeflag: tar.TypeReg, Mode: 0o640, Uid: 4711, Gid: 4712})
				volume := runtime.VolumeSpec{Workspace: spec.Workspace, Storage: storage, Claim: spec.VolumeClaim, Image: spec.Image}
				if err := r.CreateVolume(t.Context(), volume, nil); err != nil {
					t.Fatal(err)
				}
				home, err := r.findHome(t.Context(), spec.Workspace, spec.VolumeClaim, true)
				if err != nil {
					t.Fatal(err)
				}
				own := runtime.OwnSpec{Workspace: spec.Workspace, VolumeClaim: spec.VolumeClaim, UID: ownUID, Seeded: true}
				if done, err := r.ownHere(t.Context(), own, home, []uint32{0, 1000}); err != nil || done != (r == here) {
					t.Fatalf("done here: %v, %v", done, err)
				}
				if err := r.OwnHome(t.Context(), own); err != nil {
					t.Fatal(err)
				}
				files := (direct{r: r, storage: storage}).home(t, spec.Workspace)
				for _, f := range files {
					uid, gid := ownUID, ownUID
					if f.Path == "foreign" {
						uid, gid = 4711, 4712
					}
					if f.UID != uid || f.GID != gid {
						t.Errorf("%s belongs to %d:%d, want %d:%d", f.Path, f.UID, f.GID, uid, gid)
					}
				}
				if len(files) < 4 {
					t.Errorf("files: %+v", files)
				}
			})
		}
	}
}

func TestKeepsUsers(t *testing.T) {
	t.Parallel()
	for option, want := range map[string]bool{
		"name=seccomp,profile=builtin": true, "name=cgroupns": true, "name=userns": false, "name=rootless": false, "name=userns,x=y": false,
	} {
		if got := keepsUsers([]string{"name=apparmor", option}); got != want {
			t.Errorf("%s: %v", option, got)
		}
	}
}
