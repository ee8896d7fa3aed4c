package storagejob

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"codehub/internal/testing/archivetest"
)

// A job works with the capabilities of its container, for a server whose folder belongs to
// another user.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root has capabilities to drop")
	}
	setpriv, err := exec.LookPath("setpriv")
	check(t, err)
	home, restored := t.TempDir(), t.TempDir()
	archivetest.Corpus(t, home)
	before := archivetest.Snapshot(t, home)
	object := t.TempDir()
	check(t, os.Chmod(object, 0o700))
	check(t, os.Chown(object, 1234, 1235))

	run := func(spec Spec, dirs Dirs, capabilities string) report {
		cmd := exec.Command(setpriv, "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all,"+capabilities, os.Args[0])
		cmd.Env = append(os.Environ(), testJob+"="+string(encode(t, dirs)))
		cmd.Stdin = bytes.NewReader(encode(t, spec))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		_ = cmd.Run()
		r := parseReport(t, cmd.ProcessState.ExitCode(), out.Bytes())
		if r.exit != ExitOK {
			t.Fatalf("the job ended with %d: %s", r.exit, out.String())
		}
		return r
	}
	const capabilities = "+chown,+dac_override,+fowner,+fsetid,+setfcap"
	scratch := t.TempDir()
	check(t, os.Chown(scratch, 1234, 1235))
	run(archiveSpec(), Dirs{Home: home, Object: object, Scratch: scratch}, capabilities)
	if left := namesIn(t, scratch); len(left) > 0 {
		t.Errorf("the job left %q in its scratch folder", left)
	}
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
		t.Errorf("packing left traces in the home:\n%s", diff)
	}
	for _, name := range namesIn(t, object) {
		info, err := os.Lstat(filepath.Join(object, name))
		check(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 1235 || st.Mode&0o777 != 0o600 {
			t.Errorf("%s is %d:%d's, mode %o", name, st.Uid, st.Gid, st.Mode)
		}
	}
	archivetest.Corpus(t, restored)
	run(restoreSpec(readMeta(t, object)), Dirs{Home: restored, Object: object}, capabilities)
	if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
		t.Errorf("the restored home differs:\n%s", diff)
	}
}
