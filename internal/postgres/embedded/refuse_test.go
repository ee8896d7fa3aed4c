package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSecondServerRefused(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	c, err := startChild(t, dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Config{Dir: dir, Settings: quick})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != c.cmd.Process.Pid || locked.Dir != dir {
		t.Fatalf("second server: %v", err)
	}
	if want := fmt.Sprintf("pid %d", c.cmd.Process.Pid); !strings.Contains(err.Error(), want) {
		t.Errorf("%q does not contain %q", err, want)
	}
	// A command finds the database of the first server, which is not disturbed.
	url, err := Find(t.Context(), dir)
	if err != nil || url != c.url {
		t.Fatalf("found %s, %v; the server has %s", url, err, c.url)
	}
	if n := query[int](t, url, "SELECT 1"); n != 1 {
		t.Error("the first server's database is damaged")
	}
	// postgres keeps running and has not inherited the lock.
	c.kill(t)
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatalf("lock after kill -9: %v", err)
	}
	s, err := Start(t.Context(), Config{Dir: dir, Settings: quick, Lock: lock})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The caller releases the caller's lock.
	if _, err := LockDir(dir); !errors.As(err, &locked) {
		t.Errorf("lock after stop: %v", err)
	}
	for range 2 {
		if err := lock.Release(); err != nil {
			t.Error(err)
		}
	}
	lock, err = LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = lock.Release()
}

// A process that is being started has a copy of the lock's file for a moment. It does not
// keep the lock.
func TestReleasedLockIsFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	held, err := unix.Dup(int(lock.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(held)
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	next, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = next.Release()
}

func TestLockMessages(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]*LockedError{
		"another codehub server: stop":                     {Dir: "/d"},
		"another codehub server (pid 7): stop":             {Dir: "/d", PID: 7},
		"another codehub server (pid 7 on far away): stop": {Dir: "/d", PID: 7, Host: "far away"},
	} {
		if !strings.Contains(e.Error(), want) {
			t.Errorf("%q lacks %q", e, want)
		}
	}
}

func TestOtherVersionsFolder(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	file := filepath.Join(dir, "postgres/data/PG_VERSION")
	if err := os.WriteFile(file, []byte("11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{Dir: dir, Settings: quick})
	if err == nil {
		t.Fatal("started on a folder of another version")
	}
	for _, want := range []string{"made by PostgreSQL 11", "apt-get install postgresql-11", "run: codehub database upgrade", filepath.Dir(file)} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not contain %q", err, want)
		}
	}
	if got, _ := os.ReadFile(file); string(got) != "11\n" {
		t.Errorf("the folder was changed: PG_VERSION is %q", got)
	}
}

func TestNotACluster(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	if err := os.Remove(filepath.Join(dir, "postgres/data/PG_VERSION")); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{Dir: dir, Settings: quick})
	if err == nil || !strings.Contains(err.Error(), "no PG_VERSION") {
		t.Errorf("start on a damaged folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "postgres/data/base")); err != nil {
		t.Errorf("the folder was changed: %v", err)
	}
}

// The error of a failed start includes the reason that postgres logged.
func TestStartFailureHasReason(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Config{Dir: dataDir(t), Settings: map[string]string{"shared_buffers": "a lot"}})
	if err == nil || !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("start with a bad setting: %v", err)
	}
	dir := dataDir(t)
	if err := os.WriteFile(filepath.Join(dir, "postgres/data/global/pg_control"), make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Config{Dir: dir, Settings: quick})
	if err == nil || !strings.Contains(err.Error(), "PG_CONTROL_VERSION") {
		t.Errorf("start on a damaged cluster: %v", err)
	}
}

func TestNotInstalled(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	_, err := Start(t.Context(), Config{Dir: t.TempDir(), BinDirs: []string{empty}})
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "apt-get install postgresql") {
		t.Errorf("start without PostgreSQL: %v", err)
	}
}

func TestInstallations(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fake := func(name, says string, programs ...string) {
		bin := filepath.Join(dir, name, "bin")
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, p := range programs {
			script := fmt.Sprintf("#!/bin/sh\necho '%s'\n", says)
			if err := os.WriteFile(filepath.Join(bin, p), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	fake("9.6", "postgres (PostgreSQL) 9.6.24", "postgres", "initdb")
	fake("15", "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "postgres", "initdb")
	fake("17", "postgres (PostgreSQL) 17devel", "postgres", "initdb")
	fake("18", "postgres (PostgreSQL) 18.1", "initdb") // no server program
	fake("19", "cannot execute binary file", "postgres", "initdb")
	got, err := installations(t.Context(), []string{dir + "/*/bin"})
	if err != nil {
		t.Fatal(err)
	}
	want := []installation{{17, dir + "/17/bin"}, {15, dir + "/15/bin"}}
	if !slices.Equal(got, want) {
		t.Errorf("installations = %v, want %v", got, want)
	}
	_, err = installations(t.Context(), []string{dir + "/9.6/bin"})
	if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "PostgreSQL 9") {
		t.Errorf("only an old release installed: %v", err)
	}
}

func TestFolderOfAnotherUser(t *testing.T) {
	t.Parallel()
	acc, err := chooseAccounts("")
	if err != nil {
		t.Fatal(err)
	}
	dir := dataDir(t)
	l := &layout{base: dir, acc: acc}
	l.acc.postgres = account{name: "somebody", uid: acc.postgres.uid + 1}
	fi, err := os.Stat(filepath.Join(dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	err = l.checkOwner("/x", fi)
	if err == nil || !strings.Contains(err.Error(), "belongs to "+acc.postgres.name) || !strings.Contains(err.Error(), "chown -R somebody: "+dir) {
		t.Errorf("another user's folder: %v", err)
	}
}

// Links that the postgres user creates in its folder must not make a server that is root write
// elsewhere.
func TestPlantedLinks(t *testing.T) {
	t.Parallel()
	dir, outside := dataDir(t), filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data/postgresql.conf", "data/postgresql.conf.new", "log/startup.log"} {
		path := filepath.Join(dir, "postgres", name)
		_ = os.Remove(path)
		if err := os.Symlink(outside, path); err != nil {
			t.Fatal(err)
		}
	}
	startServer(t, dir)
	if got, err := os.ReadFile(outside); err != nil || string(got) != "mine" {
		t.Errorf("a file outside was written: %q, %v", got, err)
	}
	fi, err := os.Stat(outside)
	if err != nil {
		t.Fatal(err)
	}
	if st := fi.Sys().(*syscall.Stat_t); int(st.Uid) != os.Geteuid() {
		t.Errorf("a file outside was given to uid %d", st.Uid)
	}
}

// Peer authentication admits the users of the server and of postgres, as one role. The folder's
// mode keeps others from connecting, so the test opens it.
func TestPeerAuthentication(t *testing.T) {
	t.Parallel()
	s := startServer(t, dataDir(t))
	socket := filepath.Join(t.TempDir(), "s")
	if os.Geteuid() == 0 {
		// A link to the socket that every user can reach.
		public, err := os.MkdirTemp("", "codehub-peer-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(public) })
		socket = public
		for path := s.lay.path(runName); path != os.TempDir(); path = filepath.Dir(path) {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for path, mode := range map[string]os.FileMode{public: 0o755, s.lay.path(runName) + "/" + socketName: 0o777} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
		}
	} else if err := os.Mkdir(socket, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(s.lay.path(runName)+"/"+socketName, socket+"/"+socketName); err != nil {
		t.Fatal(err)
	}
	login := func(role, database string, attr *syscall.SysProcAttr) (string, error) {
		cmd := exec.Command(s.inst.path("psql"), "-h", socket, "-U", role, "-d", database, "-Atc", "SELECT current_user")
		cmd.Dir = "/"
		cmd.Env = []string{"LANG=C"}
		cmd.SysProcAttr = attr
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	acc := s.lay.acc
	for name, attr := range map[string]*syscall.SysProcAttr{"server": nil, "postgres": acc.attributes()} {
		if out, err := login(roleName, databaseName, attr); err != nil || out != roleName {
			t.Errorf("as %s: %v %s", name, err, out)
		}
		if out, err := login(superuser, databaseName, attr); err == nil || !strings.Contains(out, "no pg_hba.conf entry") {
			t.Errorf("as %s to the superuser: %v %s", name, err, out)
		}
	}
	if os.Geteuid() == 0 {
		other, err := lookUp("nobody")
		if err != nil {
			t.Fatal(err)
		}
		attr := accounts{server: acc.server, postgres: other}.attributes()
		if out, err := login(roleName, databaseName, attr); err == nil || !strings.Contains(out, "Peer authentication failed") {
			t.Errorf("as nobody: %v %s", err, out)
		}
	}
}

// A server that is root runs postgres as the configured user, and as nobody without a user
// postgres.
func TestAccounts(t *testing.T) {
	t.Parallel()
	acc, err := chooseAccounts("")
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if acc.switched() || acc.postgres.uid != os.Geteuid() {
			t.Errorf("accounts of a server that is not root: %+v", acc)
		}
		return
	}
	if !acc.switched() || acc.postgres.uid == 0 || acc.server.uid != 0 {
		t.Errorf("accounts of root: %+v", acc)
	}
	if acc, err := chooseAccounts("nobody"); err != nil || acc.postgres.name != "nobody" {
		t.Errorf("accounts of root with a preferred user: %+v, %v", acc, err)
	}
	if _, err := chooseAccounts("root"); err == nil {
		t.Error("root accepted as the user of postgres")
	}
	if _, err := chooseAccounts("no such user"); err == nil || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("unknown user: %v", err)
	}
}

// A server that is not root has one user and plain paths. If the test is root, it runs the
// server as nobody.
func TestUnprivilegedServer(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "codehub-unprivileged-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	uid := os.Geteuid()
	var attr *syscall.SysProcAttr
	if uid == 0 {
		other, err := lookUp("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid = other.uid
		attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(other.uid), Gid: uint32(other.gid)}}
		if err := os.Chown(dir, other.uid, other.gid); err != nil {
			t.Fatal(err)
		}
	}
	c, err := startChild(t, dir, attr)
	if err != nil {
		t.Fatal(err)
	}
	if got := processUID(t, c.pid); got != uid {
		t.Errorf("postgres runs as uid %d, want %d", got, uid)
	}
	c.kill(t)
	again, err := startChild(t, dir, attr)
	if err != nil {
		t.Fatal(err)
	}
	if alive(c.pid) {
		t.Errorf("the former postgres %d still runs", c.pid)
	}
	_ = again.stdin.Close()
	if err := again.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if alive(again.pid) {
		t.Errorf("postgres %d runs after a stop", again.pid)
	}
}
