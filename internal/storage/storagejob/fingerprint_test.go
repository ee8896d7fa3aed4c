package storagejob

import (
	"os"
	"path/filepath"
	"testing"

	"codehub/internal/testing/archivetest"
)

func TestFingerprintJobMatchesArchiveJob(t *testing.T) {
	t.Parallel()
	home := smallHome(t)
	before := archivetest.Snapshot(t, home)
	packed := succeed(t, archiveSpec(), Dirs{Home: home, Object: t.TempDir()}).result.Stats
	spec := Spec{Kind: KindFingerprint, Claim: testClaim}
	got := succeed(t, spec, Dirs{Home: home}).result.Stats
	if got.Fingerprint == "" || got.Fingerprint != packed.Fingerprint || got.Entries != packed.Entries {
		t.Errorf("the job reports %+v, the archive job reported %+v", got, packed)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("the job changed the home:\n%s", diff)
	}
	check(t, os.WriteFile(filepath.Join(home, "new"), nil, 0o600))
	if got := succeed(t, spec, Dirs{Home: home}).result.Stats; got.Fingerprint == packed.Fingerprint {
		t.Error("the fingerprint is the same after a change")
	}
	do(t.Context(), t, spec, Dirs{Home: filepath.Join(home, "absent")}).wantError(t, Failed)
}
