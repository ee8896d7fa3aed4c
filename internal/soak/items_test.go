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

// item is a way in which homes were once lost, damaged, exposed or blocked. It
// ends with the machine up and its homes not yet compared.
type item struct {
	name    string
	what    string
	grace   time.Duration
	prepare func(w *world) error
	run     func(w *world) error
}

var items = []item{
	{"item1", "a database restored from before an undelete", 20 * time.Second, nil, restoredDeletion},
	{"item2", "attributes that fit in one order only", time.Hour, nil, attributeOrder},
	{"item3", "Docker restarts while a home is made and restored", time.Hour, nil, restartWhileMaking},
	{"item4", "power cuts right after a volume's removal", time.Hour, nil, cutAfterRemoval},
	{"item5", "an undelete while the volume of an archived home is removed", time.Hour, nil, undeleteArchived},
	{"item6", "a second server from a copy of the data folder", 20 * time.Second, nil, restoreDrill},
	{"item7", "a database restored from before archives and restores", time.Hour, nil, olderDatabase},
	{"snapshot", "a machine restored from a snapshot, without its archives", time.Hour, nil, machineSnapshot},
	{"item8", "a clock that jumps by a day after a deletion", time.Hour, (*world).clocks, jumpAfterDeletion},
	{"item9", "folders nested deeper than Docker may open files", 3 * time.Second, func(w *world) error { w.files = "1024"; return nil }, deepFolders},
	{"item10", "a restore with a default ACL that is tried again", time.Hour, nil, restoreAgain},
	{"item11", "a cancelled restore whose removal fails", time.Hour, nil, cancelledRestore},
	{"item12", "a container that reads a home while it is archived", time.Hour, nil, foreignReader},
}

// TestItems reproduces each item. SOAK_ONLY names some of them, as
// item4,item8; without it they run with the soak.
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
			w := newWorld(t, i.name, seedOf(t), func(w *world) error {
				w.grace, w.local = i.grace, false
				w.settings = append(w.settings, "CODEHUB_STORAGE=docker-volume")
				w.quiet = true
				if i.prepare != nil {
					return i.prepare(w)
				}
				return nil
			})
			defer w.done()
			kind := i.name + ": " + i.what
			report.round(kind)
			if err := i.run(w); err != nil {
				var f finding
				if !errors.As(err, &f) {
					w.must(err)
				}
				w.found(kind, f.outcome, f.why)
			}
			w.verify(kind)
		})
	}
}

// finding is an error that says what became of a home.
type finding struct {
	outcome outcome
	why     string
}

func (f finding) Error() string { return string(f.outcome) + ": " + f.why }

// filled makes a workspace in STANDBY whose home has content of its own.
func (w *world) filled() (*life, error) {
	l := &life{w: w, rng: rand.New(rand.NewPCG(w.seed, uint64(len(w.lives)+2)))}
	_ = l.begin(errors.New("begin"))
	w.lives = append(w.lives, l)
	standby := "STANDBY"
	made, err := w.hub.Create(w.Context(), api.CreateWorkspace{Name: l.name, DesiredState: &standby})
	if err != nil {
		return nil, err
	}
	l.id = made.ID
	return l, l.furnish(w.Context())
}

// several makes n workspaces in STANDBY with content.
func (w *world) several(n int) error {
	for range n {
		if _, err := w.filled(); err != nil {
			return err
		}
	}
	return nil
}

// edit changes the home of a workspace in STANDBY and has the new content count.
func (l *life) edit(change func(dir string) error) error {
	if err := l.want(l.w.Context(), "STANDBY"); err != nil {
		return err
	}
	dir, err := l.folder(l.w.Context())
	if err != nil {
		return err
	}
	if err := errors.Join(change(dir), syncFS(dir)); err != nil {
		return err
	}
	l.home, err = snapshot(dir)
	return err
}

// until polls a workspace until it is as wanted, or the patience has ended.
func (l *life) until(patience time.Duration, as func(api.Workspace) bool) (reached bool) {
	ctx, cancel := context.WithTimeout(l.w.Context(), patience)
	defer cancel()
	return l.w.poll(ctx, l.id, func(w api.Workspace, err error) bool { return err == nil && as(w) }) == nil
}

// copyDatabase stops the server, copies its database and starts it again.
func (w *world) copyDatabase() error {
	return errors.Join(
		w.stopServer(syscall.SIGTERM),
		w.machine.run(w.Context(), io.Discard, "rm", "-rf", backup),
		w.machine.run(w.Context(), io.Discard, "cp", "-a", dataDir+"/postgres", backup),
		w.startServer(w.Context()),
	)
}

func restoredDeletion(w *world) error {
	ctx := w.Context()
	if err := w.several(6); err != nil {
		return err
	}
	l := w.lives[0]
	begin := time.Now()
	if err := l.delete(ctx); err != nil {
		return err
	}
	if !l.untilDeleted() {
		return errors.New("not deleted")
	}
	if err := w.copyDatabase(); err != nil {
		return err
	}
	if err := l.undelete(ctx); err != nil {
		return fmt.Errorf("undelete after %s: %w", time.Since(begin), err)
	}
	if err := l.furnish(ctx); err != nil {
		return err
	}
	time.Sleep(time.Until(begin.Add(w.grace + time.Second))) // the deletion in the backup is past its grace
	if err := w.stopServer(syscall.SIGTERM); err != nil {
		return err
	}
	if err := w.rollBack(); err != nil {
		return err
	}
	time.Sleep(5 * time.Second) // whatever is to be removed is removed now
	return nil
}

func (l *life) untilDeleted() bool {
	ctx, cancel := context.WithTimeout(l.w.Context(), 30*time.Second)
	defer cancel()
	return l.w.poll(ctx, l.id, func(w api.Workspace, err error) bool {
		return codehub.CodeOf(err) == "not_found" || err == nil && w.DeletedAt != nil && w.Operation == "NONE"
	}) == nil
}

// attributeOrder looks for values that a file takes in one order and not in
// that of their names, as the file system packs them into inode and block.
func attributeOrder(w *world) error {
	l, err := w.filled()
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
		_ = unix.Removexattr(dir, "system.posix_acl_default") // what inherits it has less room
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
		return errors.New("this file system takes the attributes in any order")
	}
	w.note("%d files with attributes whose order counts", found)
	if err := l.ask(w.Context(), "ARCHIVED"); err != nil {
		return err
	}
	l.until(time.Minute, func(ws api.Workspace) bool { return ws.Phase == "ERROR" || ws.Phase == "ARCHIVED" && atRest(ws) })
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

// restartWhileMaking restarts Docker at the moment at which a volume is there.
func restartWhileMaking(w *world) error {
	ctx := w.Context()
	standby := "STANDBY"
	for i := range number("SOAK_ITEM3", 12) {
		signal := []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2]
		l := &life{w: w, rng: rand.New(rand.NewPCG(w.seed, uint64(i+2)))}
		_ = l.begin(errors.New("begin"))
		w.lives = append(w.lives, l)
		made, err := w.hub.Create(ctx, api.CreateWorkspace{Name: l.name, DesiredState: &standby})
		if err != nil {
			return err
		}
		l.id = made.ID
		if i%4 >= 2 { // a restore rather than a new home
			if err := errors.Join(l.furnish(ctx), l.want(ctx, "ARCHIVED"), l.ask(ctx, "STANDBY")); err != nil {
				return err
			}
		}
		// By the folder: asking Docker would make it know the labels.
		volume := w.path(dockerRoot + "/volumes/ws-" + l.id + "-home")
		for range 5000 {
			if _, err := os.Stat(volume); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		w.nap(60)
		if err := w.stopDocker(signal); err != nil {
			return err
		}
		if err := w.startDocker(ctx); err != nil {
			return err
		}
		if !l.until(settlePatience, func(ws api.Workspace) bool { return ws.Phase == "ERROR" || atRest(ws) }) {
			return finding{stuck, fmt.Sprintf("after %s number %d", unix.SignalName(signal), i)}
		}
	}
	return nil
}

// cutAfterRemoval cuts the power as soon as homes are archived and their volumes
// removed.
func cutAfterRemoval(w *world) error {
	ctx := w.Context()
	if err := w.several(4); err != nil {
		return err
	}
	for range number("SOAK_ITEM4", 4) {
		for _, l := range w.lives {
			if err := l.ask(ctx, "ARCHIVED"); err != nil {
				return err
			}
		}
		for _, l := range w.lives {
			if !l.until(settlePatience, func(ws api.Workspace) bool { return atRest(ws) && ws.Phase == "ARCHIVED" }) {
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

// holdFast has the file system refuse to change or remove a file until release
// is called. The file stays open: a removal may move the folder that it is in.
func holdFast(path string) (release func(), err error) {
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

// undeleteArchived deletes and undeletes while the volume of a home that is in the
// bucket cannot be removed.
func undeleteArchived(w *world) error {
	ctx := w.Context()
	l, err := w.filled()
	if err != nil {
		return err
	}
	dir, err := l.folder(ctx)
	if err != nil {
		return err
	}
	release, err := holdFast(filepath.Join(dir, workDir, "a"))
	if err != nil {
		return err
	}
	defer release()
	if err := l.ask(ctx, "ARCHIVED"); err != nil {
		return err
	}
	if !l.until(settlePatience, func(ws api.Workspace) bool { return ws.ArchiveKey != nil }) {
		return finding{stuck, "no archive although the home can be read"}
	}
	if err := l.delete(ctx); err != nil {
		return err
	}
	if !l.untilDeleted() {
		w.note("the deletion is still under way")
	}
	if err := l.undelete(ctx); err != nil {
		return finding{lost, fmt.Sprintf("home and archive are both there, and undelete says: %v", err)}
	}
	return nil
}

// restoreDrill runs a second server on a copy of the data folder and the same
// Docker, as somebody who tries a backup would.
func restoreDrill(w *world) error {
	ctx := w.Context()
	if err := w.several(6); err != nil {
		return err
	}
	deleted, running := w.lives[0], w.lives[1]
	begin := time.Now()
	if err := deleted.delete(ctx); err != nil {
		return err
	}
	if !deleted.untilDeleted() {
		return errors.New("not deleted")
	}
	const copied = srv + "/copied"
	if err := errors.Join(w.stopServer(syscall.SIGTERM),
		w.machine.run(ctx, io.Discard, "cp", "-a", dataDir, copied), w.startServer(ctx), deleted.undelete(ctx)); err != nil {
		return err
	}
	if err := running.want(ctx, "RUNNING"); err != nil {
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
		return finding{damaged, fmt.Sprintf("the drill stopped a container of the original (%v)", err)}
	}
	return nil
}

// olderDatabase restores a database that knows older homes: live ones that are
// archived since, archived ones that are live since, with and without a newer
// archive, and none of one.
func olderDatabase(w *world) error {
	ctx := w.Context()
	if err := w.several(6); err != nil {
		return err
	}
	toLive, toNewer, toArchive := w.lives[0], w.lives[1], w.lives[2]
	if err := errors.Join(toLive.want(ctx, "ARCHIVED"), toNewer.want(ctx, "ARCHIVED"), w.copyDatabase()); err != nil {
		return err
	}
	if err := errors.Join(toLive.furnish(ctx), toNewer.furnish(ctx), toNewer.want(ctx, "ARCHIVED"),
		toArchive.furnish(ctx), toArchive.want(ctx, "ARCHIVED"), w.several(1), w.stopServer(syscall.SIGTERM)); err != nil {
		return err
	}
	return w.rollBack()
}

// machineSnapshot puts Docker and the database back together, but not the
// archives, which are elsewhere: one home was archived since, another one again.
func machineSnapshot(w *world) error {
	ctx := w.Context()
	if err := w.several(3); err != nil {
		return err
	}
	archived, again := w.lives[0], w.lives[1]
	snapshot, newer := w.image()+".snapshot", filepath.Join(w.dir, "newer-archives")
	for _, step := range []func() error{
		func() error { return again.want(ctx, "ARCHIVED") },
		w.shutDown,
		func() error { return onHost(ctx, "cp", "--sparse=always", w.image(), snapshot) },
		func() error { return w.boot(ctx) },
		func() error { return again.furnish(ctx) },
		func() error { return again.want(ctx, "ARCHIVED") },
		func() error { return archived.furnish(ctx) },
		func() error { return archived.want(ctx, "ARCHIVED") },
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

// onHost runs a command outside of the machine.
func onHost(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

func jumpAfterDeletion(w *world) error {
	ctx := w.Context()
	if err := w.several(2); err != nil {
		return err
	}
	l, archived := w.lives[0], w.lives[1]
	if err := archived.want(ctx, "ARCHIVED"); err != nil {
		return err
	}
	for _, l := range []*life{l, archived} {
		if err := l.delete(ctx); err != nil {
			return err
		}
		if !l.untilDeleted() {
			return errors.New("not deleted")
		}
	}
	if err := w.setClock("database", 25*time.Hour); err != nil {
		return err
	}
	time.Sleep(6 * time.Second)
	return nil
}

// deepFolders archives and deletes homes with more levels than Docker may have
// files open.
func deepFolders(w *world) error {
	ctx := w.Context()
	if err := w.several(2); err != nil {
		return err
	}
	for _, l := range w.lives {
		if err := l.edit(func(dir string) error { return nest(filepath.Join(dir, workDir), 2000) }); err != nil {
			return err
		}
	}
	archived, deleted := w.lives[0], w.lives[1]
	w.lives = w.lives[:1] // the other one is gone for good
	if err := errors.Join(archived.ask(ctx, "ARCHIVED"), deleted.delete(ctx)); err != nil {
		return err
	}
	if !archived.until(settlePatience, func(ws api.Workspace) bool { return atRest(ws) && ws.Phase == "ARCHIVED" }) {
		return finding{stuck, "it cannot be archived"}
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
			return finding{stuck, "a deleted home is never removed"}
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nest makes folders in each other.
func nest(dir string, depth int) error {
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

// large adds so much to a home that a job takes a while.
func large(dir string, rng *rand.Rand) error {
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

// restoreAgain kills the restore of a home whose root has a default ACL, at several
// moments.
func restoreAgain(w *world) error {
	ctx := w.Context()
	l, err := w.filled()
	if err != nil {
		return err
	}
	if err := l.edit(func(dir string) error {
		if err := large(dir, l.rng); err != nil {
			return err
		}
		return unix.Setxattr(dir, "system.posix_acl_default", archivetest.ACL(7, 7, 5, 4321), 0)
	}); err != nil {
		return err
	}
	for range 8 {
		if err := errors.Join(l.want(ctx, "ARCHIVED"), l.ask(ctx, "STANDBY")); err != nil {
			return err
		}
		// The root's attributes come last, and the sync after them takes a while.
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

// cancelledRestore cancels a restore while something keeps the half-filled volume
// from being removed. The workspace must never be taken for complete.
func cancelledRestore(w *world) error {
	ctx := w.Context()
	l, err := w.filled()
	if err != nil {
		return err
	}
	if err := l.edit(func(dir string) error { return large(dir, l.rng) }); err != nil {
		return err
	}
	if err := errors.Join(l.want(ctx, "ARCHIVED"), l.ask(ctx, "STANDBY")); err != nil {
		return err
	}
	volume := w.path(dockerRoot + "/volumes/ws-" + l.id + "-home/_data")
	var release func()
	for begin := time.Now(); release == nil && time.Since(begin) < 20*time.Second; {
		_ = filepath.WalkDir(volume, func(path string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return nil
			}
			if let, err := holdFast(path); err == nil {
				release = let
				return filepath.SkipAll
			}
			return nil
		})
	}
	if release == nil {
		return errors.New("the restore was over before anything could be held")
	}
	defer release()
	if _, err := w.hub.Cancel(ctx, l.id); err != nil {
		return fmt.Errorf("cancel: %w", err)
	}
	l.until(30*time.Second, func(ws api.Workspace) bool { return ws.Operation == "NONE" })
	for range 3 { // its owner tries again
		if _, err := w.hub.Recover(ctx, l.id, api.Recover{}); err == nil {
			time.Sleep(2 * time.Second)
			l.until(30*time.Second, func(ws api.Workspace) bool { return ws.Operation == "NONE" })
		}
	}
	ws, err := w.hub.Get(ctx, l.id)
	if err != nil {
		return err
	}
	if ready := ws.Conditions["storage.volume_ready"]; ws.Phase == "STANDBY" || ready.Status == "True" {
		return finding{damaged, fmt.Sprintf("a half-filled volume counts: phase %s, volume ready %s, operation %s", ws.Phase, ready.Status, ws.Operation)}
	}
	return nil
}

// foreignReader has somebody's container read a home while it is archived.
func foreignReader(w *world) error {
	ctx := w.Context()
	l, err := w.filled()
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
	if err := l.ask(ctx, "ARCHIVED"); err != nil {
		return err
	}
	failed := l.until(20*time.Second, func(ws api.Workspace) bool { return ws.Phase == "ERROR" })
	if _, err := w.docker.ContainerRemove(ctx, reader.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
		return err
	}
	if failed {
		return finding{stuck, "archiving failed for good while a container read the home"}
	}
	if !l.until(settlePatience, func(ws api.Workspace) bool { return atRest(ws) && ws.Phase == "ARCHIVED" }) {
		return finding{stuck, "not archived after the container had ended"}
	}
	return nil
}
