package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/archive/archivetest"
	"codehub/internal/soak/disk"
)

// item is a scenario in which homes were once lost, damaged, exposed or
// blocked. run returns with the machine up; the homes are compared afterwards.
type item struct {
	name        string
	description string
	grace       time.Duration
	prepare     func(w *world) error
	run         func(w *world) error
}

var items = []item{
	{"item1", "database restored from a backup before an undelete", 20 * time.Second, nil, rollbackOfUndelete},
	{"item2", "extended attributes that fit in one order only", time.Hour, nil, attributeOrder},
	{"item3", "Docker restarts while a home is created or restored", time.Hour, nil, dockerRestartDuringCreation},
	{"item4", "power cut right after the removal of volumes", time.Hour, nil, powerCutAfterArchive},
	{"item5", "undelete while the volume of an archived home is removed", time.Hour, nil, undeleteArchived},
	{"item6", "second server on a copy of the data folder", 20 * time.Second, nil, secondServer},
	{"item7", "database restored from a backup before archives and restores", time.Hour, nil, rollbackOfArchives},
	{"snapshot", "machine restored from a snapshot without the archives", time.Hour, nil, machineSnapshot},
	{"item8", "clock jump of a day after a deletion", time.Hour, (*world).makeClocksMovable, clockJumpAfterDeletion},
	{"item9", "folders nested deeper than Docker's limit of open files", 3 * time.Second, func(w *world) error { w.openFiles = "1024"; return nil }, deeplyNestedHome},
	{"item10", "killed restore of a home with a default ACL", time.Hour, nil, killedRestore},
	{"item11", "cancelled restore whose volume cannot be removed", time.Hour, nil, cancelledRestore},
	{"item12", "container that reads a home while it is archived", time.Hour, nil, readDuringArchive},
}

// TestItems reproduces each item, or those that SOAK_ONLY names, for example
// item4,item8. It runs in the soak only.
func TestItems(t *testing.T) {
	t.Parallel()
	only := strings.FieldsFunc(os.Getenv("SOAK_ONLY"), func(r rune) bool { return r == ',' })
	if len(only) == 0 && !soaking() {
		t.Skip("make soak runs it")
	}
	for _, i := range items {
		if len(only) > 0 && !slices.Contains(only, i.name) {
			continue
		}
		t.Run(i.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, i.name, newSeed(t), func(w *world) error {
				w.grace, w.local = i.grace, false
				w.settings = append(w.settings, "CODEHUB_STORAGE=docker-volume")
				w.noLives = true
				if i.prepare != nil {
					return i.prepare(w)
				}
				return nil
			})
			defer w.done()
			kind := i.name + ": " + i.description
			report.countRound(kind)
			if err := i.run(w); err != nil {
				var f finding
				if !errors.As(err, &f) {
					w.fatalOn(err)
				}
				w.reportHome(kind, f.outcome, f.why)
			}
			w.verify(kind)
		})
	}
}

// finding is an error with the outcome of a home.
type finding struct {
	outcome outcome
	why     string
}

func (f finding) Error() string { return string(f.outcome) + ": " + f.why }

// createFilled creates a workspace in STANDBY with random content.
func (w *world) createFilled() (*life, error) {
	l := &life{world: w, rng: rand.New(rand.NewPCG(w.seed, uint64(len(w.lives)+2)))}
	_ = l.reset(errors.New("begin"))
	w.lives = append(w.lives, l)
	standby := "STANDBY"
	made, err := w.api.Create(w.Context(), api.CreateWorkspace{Name: l.name, DesiredState: &standby})
	if err != nil {
		return nil, err
	}
	l.id = made.ID
	return l, l.refill(w.Context())
}

// createSeveral creates n such workspaces.
func (w *world) createSeveral(n int) error {
	for range n {
		if _, err := w.createFilled(); err != nil {
			return err
		}
	}
	return nil
}

// edit changes the home in STANDBY and makes the new content the expected one.
func (l *life) edit(change func(dir string) error) error {
	if err := l.reach(l.world.Context(), "STANDBY"); err != nil {
		return err
	}
	dir, err := l.homeFolder(l.world.Context())
	if err != nil {
		return err
	}
	if err := errors.Join(change(dir), syncFS(dir)); err != nil {
		return err
	}
	l.lastHome, err = snapshot(dir)
	return err
}

// awaitState polls the workspace until ok returns true, and reports whether it
// did within patience.
func (l *life) awaitState(patience time.Duration, ok func(api.Workspace) bool) (reached bool) {
	ctx, cancel := context.WithTimeout(l.world.Context(), patience)
	defer cancel()
	return l.world.poll(ctx, l.id, func(w api.Workspace, err error) bool { return err == nil && ok(w) }) == nil
}

// copyDatabase stops the server, copies its database and starts it again.
func (w *world) copyDatabase() error {
	return errors.Join(
		w.stopServer(syscall.SIGTERM),
		w.machine.run(w.Context(), io.Discard, "rm", "-rf", backupDir),
		w.machine.run(w.Context(), io.Discard, "cp", "-a", dataDir+"/postgres", backupDir),
		w.startServer(w.Context()),
	)
}

func rollbackOfUndelete(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(6); err != nil {
		return err
	}
	l := w.lives[0]
	begin := time.Now()
	if err := l.delete(ctx); err != nil {
		return err
	}
	if !l.awaitDeleted() {
		return errors.New("not deleted")
	}
	if err := w.copyDatabase(); err != nil {
		return err
	}
	if err := l.undelete(ctx); err != nil {
		return fmt.Errorf("undelete after %s: %w", time.Since(begin), err)
	}
	if err := l.refill(ctx); err != nil {
		return err
	}
	time.Sleep(time.Until(begin.Add(w.grace + time.Second))) // the grace of the deletion in the backup has ended
	if err := w.stopServer(syscall.SIGTERM); err != nil {
		return err
	}
	if err := w.restoreBackup(); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // time for a wrong removal
	return nil
}

func (l *life) awaitDeleted() bool {
	ctx, cancel := context.WithTimeout(l.world.Context(), 30*time.Second)
	defer cancel()
	return l.world.poll(ctx, l.id, func(w api.Workspace, err error) bool {
		return codehub.CodeOf(err) == "not_found" || err == nil && w.DeletedAt != nil && w.Operation == "NONE"
	}) == nil
}

// attributeOrder archives files whose extended attributes the file system
// accepts in one order, but not in the order of their names, because of how it
// packs them into inode and block.
func attributeOrder(w *world) error {
	l, err := w.createFilled()
	if err != nil {
		return err
	}
	set := func(name string, keys []string, sizes map[string]int) error {
		if err := os.WriteFile(name, []byte("attributes"), 0o644); err != nil {
			return err
		}
		for _, key := range keys {
			if err := unix.Setxattr(name, key, bytes.Repeat([]byte{'v'}, sizes[key]), 0); err != nil {
				return err
			}
		}
		return nil
	}
	found := 0
	err = l.edit(func(dir string) error {
		_ = unix.Removexattr(dir, "system.posix_acl_default") // an inherited ACL would take space from the attributes
		names := []string{"user.a", "user.b", "user.c"}
		trial := filepath.Join(dir, "trial")
		defer os.Remove(trial)
		for _, values := range permutations([]int{64, 40, 3980}) {
			sizes := map[string]int{names[0]: values[0], names[1]: values[1], names[2]: values[2]}
			_ = os.Remove(trial)
			if set(trial, names, sizes) == nil {
				continue
			}
			for _, order := range permutations([]int{0, 1, 2}) {
				_ = os.Remove(trial)
				keys := []string{names[order[0]], names[order[1]], names[order[2]]}
				if set(trial, keys, sizes) == nil {
					found++
					if err := os.Rename(trial, filepath.Join(dir, fmt.Sprint("attributes", found))); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if found == 0 {
		return errors.New("this file system accepts the attributes in any order")
	}
	w.note("%d files with attributes that fit in one order only", found)
	if err := l.setDesired(w.Context(), "ARCHIVED"); err != nil {
		return err
	}
	l.awaitState(time.Minute, func(ws api.Workspace) bool { return ws.Phase == "ERROR" || ws.Phase == "ARCHIVED" && isSettled(ws) })
	return nil
}

func permutations(of []int) [][]int {
	if len(of) == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for i, first := range of {
		rest := append(append([]int{}, of[:i]...), of[i+1:]...)
		for _, p := range permutations(rest) {
			all = append(all, append([]int{first}, p...))
		}
	}
	return all
}

// dockerRestartDuringCreation restarts Docker as soon as the volume of a home
// exists.
func dockerRestartDuringCreation(w *world) error {
	ctx := w.Context()
	standby := "STANDBY"
	for i := range intSetting("SOAK_ITEM3", 12) {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		l := &life{world: w, rng: rand.New(rand.NewPCG(w.seed, uint64(i+2)))}
		_ = l.reset(errors.New("begin"))
		w.lives = append(w.lives, l)
		made, err := w.api.Create(ctx, api.CreateWorkspace{Name: l.name, DesiredState: &standby})
		if err != nil {
			return err
		}
		l.id = made.ID
		if i%4 >= 2 { // a restore instead of a new home
			if err := errors.Join(l.refill(ctx), l.reach(ctx, "ARCHIVED"), l.setDesired(ctx, "STANDBY")); err != nil {
				return err
			}
		}
		// Looks at the folder, because Docker reads the volume's labels when
		// asked for it.
		volume := w.path(dockerRoot + "/volumes/ws-" + l.id + "-home")
		for range 5000 {
			if _, err := os.Stat(volume); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.sleepUpTo(60)
		if err := w.stopDocker(signal); err != nil {
			return err
		}
		if err := w.startDocker(ctx); err != nil {
			return err
		}
		if !l.awaitState(settlePatience, func(ws api.Workspace) bool { return ws.Phase == "ERROR" || isSettled(ws) }) {
			return finding{stuck, fmt.Sprintf("after %s number %d", unix.SignalName(signal), i)}
		}
	}
	return nil
}

// powerCutAfterArchive cuts the power as soon as homes are archived and their
// volumes removed.
func powerCutAfterArchive(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(4); err != nil {
		return err
	}
	for range intSetting("SOAK_ITEM4", 4) {
		for _, l := range w.lives {
			if err := l.setDesired(ctx, "ARCHIVED"); err != nil {
				return err
			}
		}
		for _, l := range w.lives {
			if !l.awaitState(settlePatience, func(ws api.Workspace) bool { return isSettled(ws) && ws.Phase == "ARCHIVED" }) {
				return finding{stuck, "not archived"}
			}
		}
		if err := errors.Join(w.powerOff(disk.LoseAll, w.rng), w.end(), w.boot(ctx)); err != nil {
			return err
		}
		for _, l := range w.lives {
			if result, why := l.verify(ctx); result != ok {
				return finding{result, why}
			}
		}
	}
	return nil
}

// makeImmutable makes a file immutable until release is called. It keeps the
// file open, because a removal may move its folder.
func makeImmutable(path string) (release func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := setImmutable(f, true); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		_ = setImmutable(f, false)
		_ = f.Close()
	}, nil
}

func setImmutable(f *os.File, on bool) error {
	const getFlags, setFlags, flag = 0x80086601, 0x40086602, 0x10
	flags, err := unix.IoctlGetInt(int(f.Fd()), getFlags)
	if err != nil {
		return fmt.Errorf("flags of %s: %w", f.Name(), err)
	}
	if flags &^= flag; on {
		flags |= flag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), setFlags, flags); err != nil {
		return fmt.Errorf("flags of %s: %w", f.Name(), err)
	}
	return nil
}

// undeleteArchived deletes and undeletes a workspace while the volume of its
// archived home cannot be removed.
func undeleteArchived(w *world) error {
	ctx := w.Context()
	l, err := w.createFilled()
	if err != nil {
		return err
	}
	dir, err := l.homeFolder(ctx)
	if err != nil {
		return err
	}
	release, err := makeImmutable(filepath.Join(dir, workDir, "a"))
	if err != nil {
		return err
	}
	defer release()
	if err := l.setDesired(ctx, "ARCHIVED"); err != nil {
		return err
	}
	if !l.awaitState(settlePatience, func(ws api.Workspace) bool { return ws.ArchiveKey != nil }) {
		return finding{stuck, "not archived although the home is readable"}
	}
	if err := l.delete(ctx); err != nil {
		return err
	}
	if !l.awaitDeleted() {
		w.note("the deletion has not completed")
	}
	if err := l.undelete(ctx); err != nil {
		return finding{lost, fmt.Sprintf("home and archive exist, and undelete failed: %v", err)}
	}
	return nil
}

// secondServer runs a second server on a copy of the data folder and the same
// Docker, as a test of a backup might do.
func secondServer(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(6); err != nil {
		return err
	}
	deleted, running := w.lives[0], w.lives[1]
	begin := time.Now()
	if err := deleted.delete(ctx); err != nil {
		return err
	}
	if !deleted.awaitDeleted() {
		return errors.New("not deleted")
	}
	const copied = srv + "/copied"
	if err := errors.Join(w.stopServer(syscall.SIGTERM),
		w.machine.run(ctx, io.Discard, "cp", "-a", dataDir, copied), w.startServer(ctx), deleted.undelete(ctx)); err != nil {
		return err
	}
	if err := running.reach(ctx, "RUNNING"); err != nil {
		return err
	}
	before, err := w.docker.ContainerInspect(ctx, "codehub-ws-"+running.id, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	time.Sleep(time.Until(begin.Add(w.grace + time.Second)))
	port := w.listener.Addr().(*net.TCPAddr).Port + 1
	environ := append(w.serverEnv(), "CODEHUB_DATA_DIR="+copied, fmt.Sprintf("CODEHUB_LISTEN=127.0.0.1:%d", port), fmt.Sprintf("CODEHUB_URL=http://localhost:%d", port))
	second, err := w.spawn(environ, w.binary, "serve")
	if err != nil {
		return err
	}
	time.Sleep(15 * time.Second)
	second.signal(syscall.SIGTERM)
	if err := second.wait(time.Minute); err != nil {
		return err
	}
	after, err := w.docker.ContainerInspect(ctx, "codehub-ws-"+running.id, client.ContainerInspectOptions{})
	if err != nil || after.Container.ID != before.Container.ID || !after.Container.State.Running {
		return finding{damaged, fmt.Sprintf("the second server stopped a container of the original (%v)", err)}
	}
	return nil
}

// rollbackOfArchives restores a database from before homes were archived,
// restored, archived again and created.
func rollbackOfArchives(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(6); err != nil {
		return err
	}
	toLive, toNewer, toArchive := w.lives[0], w.lives[1], w.lives[2]
	if err := errors.Join(toLive.reach(ctx, "ARCHIVED"), toNewer.reach(ctx, "ARCHIVED"), w.copyDatabase()); err != nil {
		return err
	}
	if err := errors.Join(toLive.refill(ctx), toNewer.refill(ctx), toNewer.reach(ctx, "ARCHIVED"),
		toArchive.refill(ctx), toArchive.reach(ctx, "ARCHIVED"), w.createSeveral(1), w.stopServer(syscall.SIGTERM)); err != nil {
		return err
	}
	return w.restoreBackup()
}

// machineSnapshot restores Docker and the database from a snapshot, but not the
// archives. Since the snapshot one home was archived and another one archived
// again.
func machineSnapshot(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(3); err != nil {
		return err
	}
	archived, again := w.lives[0], w.lives[1]
	snapshot, newer := w.image()+".snapshot", filepath.Join(w.dir, "newer-archives")
	for _, step := range []func() error{
		func() error { return again.reach(ctx, "ARCHIVED") },
		w.shutDown,
		func() error { return onHost(ctx, "cp", "--sparse=always", w.image(), snapshot) },
		func() error { return w.boot(ctx) },
		func() error { return again.refill(ctx) },
		func() error { return again.reach(ctx, "ARCHIVED") },
		func() error { return archived.refill(ctx) },
		func() error { return archived.reach(ctx, "ARCHIVED") },
		func() error { return onHost(ctx, "cp", "-a", w.path(archiveDir), newer) },
		w.shutDown,
		func() error { return onHost(ctx, "mv", snapshot, w.image()) },
		w.powerOn,
		func() error { return onHost(ctx, "rm", "-rf", w.path(archiveDir)) },
		func() error { return onHost(ctx, "cp", "-a", newer, w.path(archiveDir)) },
		func() error { return w.startDocker(ctx) },
		func() error { return w.startServer(ctx) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	for _, l := range w.lives {
		l.rolledBack = true
	}
	return w.takeOver(ctx)
}

// onHost runs a command on the host.
func onHost(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

func clockJumpAfterDeletion(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(2); err != nil {
		return err
	}
	l, archived := w.lives[0], w.lives[1]
	if err := archived.reach(ctx, "ARCHIVED"); err != nil {
		return err
	}
	for _, l := range []*life{l, archived} {
		if err := l.delete(ctx); err != nil {
			return err
		}
		if !l.awaitDeleted() {
			return errors.New("not deleted")
		}
	}
	if err := w.setClock("database", 25*time.Hour); err != nil {
		return err
	}
	time.Sleep(6 * time.Second)
	return nil
}

// deeplyNestedHome archives and deletes homes with more levels of folders than
// Docker's limit of open files.
func deeplyNestedHome(w *world) error {
	ctx := w.Context()
	if err := w.createSeveral(2); err != nil {
		return err
	}
	for _, l := range w.lives {
		if err := l.edit(func(dir string) error { return makeNested(filepath.Join(dir, workDir), 2000) }); err != nil {
			return err
		}
	}
	archived, deleted := w.lives[0], w.lives[1]
	w.lives = w.lives[:1] // the deleted one is not verified
	if err := errors.Join(archived.setDesired(ctx, "ARCHIVED"), deleted.delete(ctx)); err != nil {
		return err
	}
	if !archived.awaitState(settlePatience, func(ws api.Workspace) bool { return isSettled(ws) && ws.Phase == "ARCHIVED" }) {
		return finding{stuck, "not archived"}
	}
	bounded, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for {
		_, err := w.docker.VolumeInspect(bounded, "ws-"+deleted.id+"-home", client.VolumeInspectOptions{})
		if err != nil && bounded.Err() == nil {
			return nil
		}
		select {
		case <-bounded.Done():
			return finding{stuck, "the deleted home was not removed"}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// makeNested creates nested folders.
func makeNested(dir string, depth int) error {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for range depth {
		if err := unix.Mkdirat(fd, "d", 0o755); err != nil {
			return err
		}
		next, err := unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.Close(fd)
		fd = next
	}
	return nil
}

// addLargeFiles makes a home large enough for a storage job to take a while.
func addLargeFiles(dir string, rng *rand.Rand) error {
	if err := os.Mkdir(filepath.Join(dir, "large"), 0o750); err != nil {
		return err
	}
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(dir, "large", fmt.Sprint(i)), random(rng, 40_000), 0o640); err != nil {
			return err
		}
	}
	return nil
}

// killedRestore kills the restore of a home whose root has a default ACL, eight
// times.
func killedRestore(w *world) error {
	ctx := w.Context()
	l, err := w.createFilled()
	if err != nil {
		return err
	}
	if err := l.edit(func(dir string) error {
		if err := addLargeFiles(dir, l.rng); err != nil {
			return err
		}
		return unix.Setxattr(dir, "system.posix_acl_default", archivetest.ACL(7, 7, 5, 4321), 0)
	}); err != nil {
		return err
	}
	for range 8 {
		if err := errors.Join(l.reach(ctx, "ARCHIVED"), l.setDesired(ctx, "STANDBY")); err != nil {
			return err
		}
		// The job sets the root's attributes last, and the following sync
		// takes a while.
		volume := w.path(dockerRoot + "/volumes/ws-" + l.id + "-home/_data")
		var value [1024]byte
		for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Millisecond) {
			if n, err := unix.Getxattr(volume, "system.posix_acl_default", value[:]); err == nil && n > 0 {
				break
			}
		}
		_, err := w.docker.ContainerKill(ctx, "codehub-restore-"+l.id, client.ContainerKillOptions{Signal: "KILL"})
		killed := err == nil
		w.note("killed the restore: %v", killed)
		if result, why := l.verify(ctx); result != ok {
			return finding{result, why}
		}
	}
	return nil
}

// cancelledRestore cancels a restore whose half-filled volume cannot be
// removed. The volume must not count as complete.
func cancelledRestore(w *world) error {
	ctx := w.Context()
	l, err := w.createFilled()
	if err != nil {
		return err
	}
	if err := l.edit(func(dir string) error { return addLargeFiles(dir, l.rng) }); err != nil {
		return err
	}
	if err := errors.Join(l.reach(ctx, "ARCHIVED"), l.setDesired(ctx, "STANDBY")); err != nil {
		return err
	}
	volume := w.path(dockerRoot + "/volumes/ws-" + l.id + "-home/_data")
	var release func()
	for begin := time.Now(); release == nil && time.Since(begin) < 20*time.Second; {
		_ = filepath.WalkDir(volume, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if let, err := makeImmutable(path); err == nil {
				release = let
				return filepath.SkipAll
			}
			return nil
		})
	}
	if release == nil {
		return errors.New("the restore ended before a file could be made immutable")
	}
	defer release()
	if _, err := w.api.Cancel(ctx, l.id); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	l.awaitState(30*time.Second, func(ws api.Workspace) bool { return ws.Operation == "NONE" })
	for range 3 { // the owner recovers it
		if _, err := w.api.Recover(ctx, l.id, api.Recover{}); err == nil {
			time.Sleep(2 * time.Second)
			l.awaitState(30*time.Second, func(ws api.Workspace) bool { return ws.Operation == "NONE" })
		}
	}
	ws, err := w.api.Get(ctx, l.id)
	if err != nil {
		return err
	}
	if ready := ws.Conditions["storage.volume_ready"]; ws.Phase == "STANDBY" || ready.Status == "True" {
		return finding{damaged, fmt.Sprintf("a half-filled volume counts: phase %s, volume ready %s, operation %s", ws.Phase, ready.Status, ws.Operation)}
	}
	return nil
}

// readDuringArchive has a container of another owner read a home while it is
// archived.
func readDuringArchive(w *world) error {
	ctx := w.Context()
	l, err := w.createFilled()
	if err != nil {
		return err
	}
	reader, err := w.docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: env.image},
		HostConfig: &container.HostConfig{Binds: []string{"ws-" + l.id + "-home:/read:ro"}},
	})
	if err != nil {
		return err
	}
	if _, err := w.docker.ContainerStart(ctx, reader.ID, client.ContainerStartOptions{}); err != nil {
		return err
	}
	if err := l.setDesired(ctx, "ARCHIVED"); err != nil {
		return err
	}
	failed := l.awaitState(20*time.Second, func(ws api.Workspace) bool { return ws.Phase == "ERROR" })
	if _, err := w.docker.ContainerRemove(ctx, reader.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
		return err
	}
	if failed {
		return finding{stuck, "ERROR while a container read the home"}
	}
	if !l.awaitState(settlePatience, func(ws api.Workspace) bool { return isSettled(ws) && ws.Phase == "ARCHIVED" }) {
		return finding{stuck, "not archived after the container had ended"}
	}
	return nil
}
