package storagejob

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/storage/transfer"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
)

// process is a job in a process of its own.
type process struct {
	*exec.Cmd
	out bytes.Buffer
}

func startProcess(tb testing.TB, dirs Dirs, in io.Reader, env ...string) *process {
	tb.Helper()
	p := &process{Cmd: exec.Command(os.Args[0])}
	p.Env = append(append(os.Environ(), testJob+"="+string(encode(tb, dirs))), env...)
	p.Stdin, p.Stdout, p.Stderr = in, &p.out, os.Stderr
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(tb, p.Start())
	return p
}

// homeWithACLs creates a home with default ACLs on its root and on folders, which widen the
// permissions of new files in them; its own files do not have these.
func homeWithACLs(tb testing.TB) string {
	tb.Helper()
	home := smallHome(tb)
	inner := filepath.Join(home, "folder-1", "inner")
	check(tb, os.Mkdir(inner, 0o700))
	check(tb, os.WriteFile(filepath.Join(inner, "private"), []byte("private"), 0o600))
	check(tb, os.WriteFile(filepath.Join(home, "private"), []byte("private"), 0o600))
	check(tb, os.WriteFile(filepath.Join(home, "shared"), []byte("shared"), 0o600))
	check(tb, unix.Setxattr(filepath.Join(home, "shared"), "system.posix_acl_access", archivetest.ACL(6, 6, 0, 4321), 0))
	for _, dir := range []string{".", "folder-1", "folder-1/inner", "folder-2"} {
		check(tb, unix.Setxattr(filepath.Join(home, dir), "system.posix_acl_default", archivetest.ACL(7, 7, 5, 4321), 0))
	}
	check(tb, unix.Setxattr(filepath.Join(home, "folder-2"), "system.posix_acl_access", archivetest.ACL(7, 7, 5, 4321), 0))
	return home
}

// A job that is killed at any stage leaves nothing that looks like a result, and the next one
// does all of the work. make check and make test have one stage of each kind.
func TestKilled(t *testing.T) {
	t.Parallel()
	home, object, scratch := homeWithACLs(t), t.TempDir(), t.TempDir()
	before := archivetest.Snapshot(t, home)
	succeed(t, archiveSpec(), Dirs{Home: home, Object: object, Scratch: scratch})
	meta := readMeta(t, object)
	kill := func(t *testing.T, spec Spec, dirs Dirs, stage string) {
		t.Helper()
		p := startProcess(t, dirs, bytes.NewReader(encode(t, spec)), testKillAt+"="+stage)
		err := p.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the job ended with %v: %s", err, p.out.String())
		}
		if strings.Contains(p.out.String(), `"result"`) {
			t.Errorf("a killed job has reported %s", p.out.String())
		}
	}
	some := func(stage, one string) bool { return stage == one || harness.Verifying() }
	for i, stage := range archiveStages {
		if !some(stage, "meta") {
			continue
		}
		t.Run("archive/"+stage, func(t *testing.T) {
			t.Parallel()
			object := t.TempDir()
			kill(t, archiveSpec(), Dirs{Home: home, Object: object}, stage)
			complete := exists(t, filepath.Join(object, archive.MetaKey(ObjectName)))
			if complete != (stage == "done") || exists(t, filepath.Join(object, ObjectName)) != (i > 0) {
				t.Errorf("the folder of the archive holds %q", namesIn(t, object))
			}
			if diff := archivetest.Diff(before, archivetest.Snapshot(t, home)); diff != "" {
				t.Errorf("the home changed:\n%s", diff)
			}
			succeed(t, archiveSpec(), Dirs{Home: home, Object: object})
			if readMeta(t, object).SHA256 != meta.SHA256 {
				t.Error("the next job stored a different archive")
			}
		})
	}
	for _, stage := range restoreStages {
		if !some(stage, "done") {
			continue
		}
		t.Run("restore/"+stage, func(t *testing.T) {
			t.Parallel()
			restored := homeWithACLs(t)
			kill(t, restoreSpec(meta), Dirs{Home: restored, Object: object}, stage)
			succeed(t, restoreSpec(meta), Dirs{Home: restored, Object: object})
			if diff := archivetest.Diff(before, archivetest.Snapshot(t, restored)); diff != "" {
				t.Errorf("the restored home differs:\n%s", diff)
			}
		})
	}
}

// A job that is killed while it writes leaves an incomplete archive under another name, which
// the server removes.
func TestKilledWhilePacking(t *testing.T) {
	t.Parallel()
	home, object := smallHome(t), t.TempDir()
	check(t, os.WriteFile(filepath.Join(home, "large"), randomBytes(256<<20), 0o600))
	p := startProcess(t, Dirs{Home: home, Object: object}, bytes.NewReader(encode(t, archiveSpec())))
	harness.Await(t, 30*time.Second, "the job writes", func() []string { return namesIn(t, object) }, func(names []string) bool { return len(names) > 0 })
	check(t, p.Process.Kill())
	if err := p.Wait(); err == nil {
		t.Fatal("the job was done before it was killed")
	}
	if exists(t, filepath.Join(object, ObjectName)) || exists(t, filepath.Join(object, archive.MetaKey(ObjectName))) {
		t.Errorf("the folder of the archive holds %q", namesIn(t, object))
	}
	n, err := store.NewFolder(object).AbortIncomplete(t.Context(), "", 0, nil)
	check(t, err)
	if n != 1 || len(namesIn(t, object)) > 0 {
		t.Errorf("%d incomplete archives were removed, %q remain", n, namesIn(t, object))
	}
}

// SIGTERM ends a job at once, whatever it waits for.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]*Spec{"before its instructions": nil, "while the server is away": {
		Kind: "archive", Claim: testClaim, Meta: testMeta(),
		Signed: &Signed{Meta: "https://bucket/meta?sig", Upload: &transfer.Ticket{PartSize: 5 << 20, Parts: []string{"https://bucket/part?sig"}}},
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			check(t, err)
			defer w.Close()
			p := startProcess(t, Dirs{Home: smallHome(t), Bucket: t.TempDir()}, r)
			check(t, r.Close())
			// More than a pipe holds: once it is written, the job reads it and handles signals.
			in := bytes.Repeat([]byte(" "), 128<<10)
			if spec != nil {
				in = append(in, encode(t, spec)...)
			}
			_, err = w.Write(in)
			check(t, err)
			began := time.Now()
			check(t, p.Process.Signal(syscall.SIGTERM))
			var exit *exec.ExitError
			if err := p.Wait(); !errors.As(err, &exit) || exit.ExitCode() != ExitFailed {
				t.Errorf("the job ended with %v", err)
			}
			if took := time.Since(began); took > cleanUpWithin+20*time.Second {
				t.Errorf("it took %s", took)
			}
			if spec == nil {
				rep := parseReport(t, ExitFailed, p.out.Bytes())
				if rep.result == nil || rep.result.Error == nil || rep.result.Error.Kind != Stopped {
					t.Errorf("the job reported %s", p.out.String())
				}
			}
		})
	}
}
