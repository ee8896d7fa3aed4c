package homebackup_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"codehub/internal/control/homebackup"
	"codehub/internal/control/mark"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/archivetest"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// testJob is set in a process that is a storage job: its storagejob.Dirs, as JSON.
const testJob = "CODEHUB_TEST_STORAGE_JOB"

func jobProcess(encoded string) int {
	var dirs storagejob.Dirs
	if err := json.Unmarshal([]byte(encoded), &dirs); err != nil {
		panic(err)
	}
	return storagejob.Run(context.Background(), os.Stdin, os.Stdout, dirs)
}

// killed is a world whose jobs are processes that end by SIGKILL at random moments, and whose leaders
// die between two statements or accesses to the bucket.
type killed struct {
	*world
	rng   *rand.Rand
	homes map[workspace.ID]string                 // folders
	want  map[string]map[string]archivetest.State // by the first part of their manifests' names
	// compacted are the manifests that were rewritten.
	compacted map[string]bool

	mu       sync.Mutex
	took     map[runtime.JobKind]time.Duration // of jobs that were not killed
	ended    map[workspace.ID]int              // jobs of backups
	kills    map[string]int                    // what was killed
	orphaned chan struct{}                     // closed when the jobs of a dead leader are to end, too
	leader   *leader
	power    *power // nil: the machine stays on
}

// leader counts the statements and accesses to the bucket of one term.
type leader struct {
	mu   sync.Mutex
	left int  // steps until it dies; 0: it lives on
	done bool // the last step is done, and the leader does not learn of it
	dead bool
	die  func() // nil: it only loses the database, and keeps the bucket and the runtime

	cancel context.CancelFunc
	run    chan error
}

var errDead = errors.New("the leader is dead")

func (l *leader) step(f func() error) error {
	l.mu.Lock()
	if l.dead {
		l.mu.Unlock()
		return errDead
	}
	l.left--
	last := l.left == 0
	if last {
		l.dead = true
	}
	l.mu.Unlock()
	if !last {
		return f()
	}
	if l.done {
		_ = f()
	}
	if l.die != nil {
		l.die()
	}
	return errDead
}

// kill ends the leader now.
func (l *leader) kill() {
	l.mu.Lock()
	dead := l.dead
	l.dead = true
	l.mu.Unlock()
	if !dead {
		l.die()
	}
}

func (l *leader) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

type mortalSession struct {
	postgres.Session
	*leader
}

func (s mortalSession) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return s.step(func() error { return s.Session.Do(ctx, f) })
}

// mortalStore is the folder of the bucket as the present leader sees it.
type mortalStore struct {
	fixture.Folder
	k *killed
}

func (s mortalStore) step(f func() error) error {
	s.k.mu.Lock()
	l := s.k.leader
	s.k.mu.Unlock()
	if l == nil || l.die == nil {
		return f()
	}
	return l.step(f)
}

func (s mortalStore) Get(ctx context.Context, key string, offset int64) (r io.ReadCloser, err error) {
	err = s.step(func() error { r, err = s.Folder.Get(ctx, key, offset); return err })
	if err != nil && r != nil {
		r.Close()
		r = nil
	}
	return r, err
}

func (s mortalStore) Put(ctx context.Context, key string, r io.Reader) (n int64, err error) {
	err = s.step(func() error { n, err = s.Folder.Put(ctx, key, r); return err })
	return n, err
}

func (s mortalStore) GetRange(ctx context.Context, key string, offset, length int64) (r io.ReadCloser, err error) {
	err = s.step(func() error { r, err = s.Folder.GetRange(ctx, key, offset, length); return err })
	return r, err
}

func (s mortalStore) Delete(ctx context.Context, key string) error {
	return s.step(func() error { return s.Folder.Delete(ctx, key) })
}

func newKilled(t *testing.T, seed uint64, homes int) *killed {
	t.Helper()
	k := &killed{
		world: newWorld(t), rng: rand.New(rand.NewPCG(seed, 0)), homes: map[workspace.ID]string{}, want: map[string]map[string]archivetest.State{}, compacted: map[string]bool{},
		took: map[runtime.JobKind]time.Duration{}, ended: map[workspace.ID]int{}, kills: map[string]int{},
	}
	k.bucket = fixture.OpenBucket(t, mortalStore{fixture.Folder{Folder: store.NewFolder(k.bucket.Folder), Dir: k.bucket.Folder}, k}, k.bucket.Installation)
	k.cfg.Bucket, k.cfg.Keep, k.cfg.Drill, k.cfg.MaxJobs = k.bucket, "3d", 24*time.Hour, homes
	k.fake.SetJob(k.job)
	for i := range homes {
		ws := k.home(fmt.Sprint("home ", i), "")
		folder := filepath.Join(t.TempDir(), "home")
		check(t, os.Mkdir(folder, 0o750))
		k.homes[ws.ID] = folder
		for range 30 {
			k.mutate(folder)
		}
	}
	return k
}

// job runs a storage job in a process.
func (k *killed) job(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
	if spec.Kind == runtime.JobBackup {
		home = k.homes[spec.Workspace]
		defer func() {
			k.mu.Lock()
			k.ended[spec.Workspace]++
			k.mu.Unlock()
		}()
	}
	return k.process(ctx, spec, home, out)
}

// process runs a job, and kills every other one at a random moment, unless power cuts do.
func (k *killed) process(ctx context.Context, spec runtime.JobSpec, home string, out io.Writer) int {
	dirs, err := json.Marshal(storagejob.Dirs{Home: home, Object: spec.ObjectDir})
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), testJob+"="+string(dirs))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(spec.Input), out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	k.mu.Lock()
	kill, took, orphaned := k.power == nil && k.rng.IntN(2) == 0, k.took[spec.Kind], k.orphaned
	after, orphanKill := time.Duration(k.rng.Float64()*1.2*float64(max(took, 20*time.Millisecond))), k.rng.IntN(2) == 0
	k.mu.Unlock()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return storagejob.ExitFailed
	}
	over := make(chan struct{})
	go func() {
		var timer <-chan time.Time
		if kill {
			timer = time.After(after)
		}
		for {
			select {
			case <-over:
				return
			case <-timer:
				_ = cmd.Process.Kill()
			case <-orphaned:
				if orphaned = nil; orphanKill || k.power != nil {
					_ = cmd.Process.Kill()
				}
			}
		}
	}()
	err = cmd.Wait()
	close(over)
	k.mu.Lock()
	defer k.mu.Unlock()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		k.kills[string(spec.Kind)]++
		return 137
	}
	if err == nil {
		if k.took[spec.Kind] = (3*took + time.Since(began)) / 4; took == 0 {
			k.took[spec.Kind] = time.Since(began)
		}
	}
	return cmd.ProcessState.ExitCode()
}

// lead lets a leader begin, which dies or loses the database after so many steps; 0: never.
func (k *killed) lead(steps int, loses bool) *leader {
	k.Helper()
	ctrl := k.Controller()
	check(k, mark.New(mark.Config{Runtime: k.fake, Bucket: k.bucket, Log: k.cfg.Log, Watch: time.Millisecond}).Move(k.Context(), ctrl))
	ctx, cancel := context.WithCancel(k.Context())
	one := &leader{left: steps, done: k.rng.IntN(2) == 0, cancel: cancel, run: make(chan error, 1)}
	if !loses {
		one.die = func() {
			k.fake.SetDown(true) // its jobs go on
			if k.power != nil {
				k.power.cut(k)
			}
			cancel()
		}
	}
	k.mu.Lock()
	k.leader = one
	clear(k.ended)
	k.mu.Unlock()
	go func() { one.run <- homebackup.NewRunner(k.cfg).Run(ctx, mortalSession{ctrl, one}) }()
	return one
}

// await returns once a leader is dead, or each home was backed up or its job was killed.
func (k *killed) await(one *leader) {
	k.Helper()
	for deadline := time.Now().Add(4 * patience); !one.isDead(); time.Sleep(5 * time.Millisecond) {
		k.mu.Lock()
		all := len(k.ended) == len(k.homes)
		k.mu.Unlock()
		if all && fixture.Query[int](k, `SELECT count(*) FROM home_backups WHERE state = 'running'`) == 0 {
			return
		}
		if time.Now().After(deadline) {
			k.Fatalf("the term does not end: %s", fixture.Query[string](k, `SELECT coalesce(string_agg(state || ' ' || cause || ' ' || error, ', '), '') FROM home_backups`))
		}
	}
}

// term lets a leader begin, which dies after so many steps, or ends in order once each home was backed
// up or its job was killed; 0. One that only loses the database goes on while the next one leads.
func (k *killed) term(steps int) {
	k.Helper()
	k.mu.Lock()
	k.orphaned = make(chan struct{})
	k.mu.Unlock()
	loses := k.power == nil && steps > 0 && k.rng.IntN(3) == 0
	leaders := []*leader{k.lead(steps, loses)}
	began := time.Now()
	if k.power != nil && steps == 0 && k.power.term > 0 {
		timer := time.AfterFunc(time.Duration(k.rng.Float64()*1.5*float64(k.power.term)), leaders[0].kill)
		defer timer.Stop()
	}
	k.await(leaders[0])
	if k.power != nil && !leaders[0].isDead() {
		k.power.term = time.Since(began)
	}
	if loses && leaders[0].isDead() {
		for id := range k.homes {
			if k.pending(id) == 0 { // it was backed up in this term
				k.request(id)
			}
		}
		leaders = append(leaders, k.lead(0, false))
		k.await(leaders[1])
	}
	for _, one := range leaders {
		one.cancel()
		if err := <-one.run; err != nil {
			k.Errorf("the runner ended: %v", err)
		}
	}
	k.mu.Lock()
	k.leader = nil
	switch {
	case !leaders[0].isDead():
	case loses:
		k.kills["leader that goes on"]++
	case k.power != nil:
		k.kills["power"]++
	default:
		k.kills["leader"]++
	}
	close(k.orphaned)
	k.orphaned = nil
	k.mu.Unlock()
	k.fake.SetDown(false)
	harness.EventuallyWithin(k, patience, "no job runs", func() bool {
		jobs, err := k.fake.Jobs(k.Context())
		return err == nil && !slices.ContainsFunc(jobs, func(j runtime.Job) bool { return j.Running })
	})
	if k.power != nil && leaders[0].isDead() {
		k.power.on(k)
	}
}

// mutate changes something in a home.
func (k *killed) mutate(home string) {
	k.Helper()
	var files, folders []string
	check(k, filepath.WalkDir(home, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, name)
		} else if err == nil && d.Type().IsRegular() {
			files = append(files, name)
		}
		return err
	}))
	pick := func(list []string) string { return list[k.rng.IntN(len(list))] }
	fresh := filepath.Join(pick(folders), fmt.Sprintf("%x", k.rng.Uint64()))
	content := make([]byte, []int{0, 100, 5_000, 70_000, 300_000, 1_000_000}[k.rng.IntN(6)])
	for i := range content {
		content[i] = byte(k.rng.Uint32())
	}
	if len(files) == 0 {
		check(k, os.WriteFile(fresh, content, 0o644))
		return
	}
	old := pick(files)
	if len(files) > 50 {
		for range 10 {
			_ = os.Remove(pick(files)) // it may be removed already
		}
		return
	}
	switch k.rng.IntN(12) {
	case 0, 1, 2:
		check(k, os.WriteFile(fresh, content, 0o600))
	case 3: // with the same size and time
		st, err := os.Stat(old)
		check(k, err)
		f, err := os.OpenFile(old, os.O_WRONLY, 0)
		check(k, err)
		_, err = f.WriteAt(content[:min(int64(len(content)), st.Size())], 0)
		check(k, errors.Join(err, f.Close(), os.Chtimes(old, st.ModTime(), st.ModTime())))
	case 4:
		f, err := os.OpenFile(old, os.O_WRONLY|os.O_APPEND, 0)
		check(k, err)
		_, err = f.Write(content)
		check(k, errors.Join(err, f.Close()))
	case 5:
		check(k, os.Remove(old))
	case 6:
		check(k, os.Rename(old, fresh))
	case 7:
		check(k, os.Link(old, fresh))
	case 8:
		check(k, os.Symlink(old, fresh))
	case 9:
		if len(folders) > 8 {
			check(k, os.RemoveAll(folders[len(folders)-1]))
		} else {
			check(k, os.Mkdir(fresh, 0o2750))
		}
	case 10:
		check(k, os.Truncate(old, int64(k.rng.IntN(3_000_000))))
	case 11:
		check(k, unix.Setxattr(old, "user.test", content[:min(len(content), 200)], 0))
		check(k, os.Chmod(old, os.FileMode(0o600+k.rng.IntN(64))))
		check(k, os.Chown(old, k.rng.IntN(3)*1000, 1000))
	}
}

// shift makes all backups and their objects older.
func (k *killed) shift(d time.Duration) {
	k.pass(d)
	check(k, filepath.Walk(k.bucket.Folder, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			err = os.Chtimes(path, info.ModTime().Add(-d), info.ModTime().Add(-d))
		}
		return err
	}))
}

// listed are the backups that their owners see.
func (k *killed) listed() (list []workspace.Backup) {
	k.Helper()
	for id := range k.homes {
		page, _, err := k.DB.HomeBackups(k.Context(), k.owner, id, postgres.Page{Limit: postgres.MaxList})
		check(k, err)
		list = append(list, page...)
	}
	return slices.DeleteFunc(list, func(b workspace.Backup) bool {
		return b.State == workspace.BackupWaiting || b.State == workspace.BackupRunning
	})
}

// restore restores a backup into a folder that has other files, after attempts that may be killed, and
// compares all of it.
func (k *killed) restore(b workspace.Backup, attempts int) {
	k.Helper()
	row := k.row(b.WorkspaceID)
	row.OpID, row.ArchiveKey, row.ArchiveDigest, row.ArchiveSize = "restore", b.Key, b.Digest, b.Size
	meta, err := k.bucket.Meta(k.Context(), b.Key)
	check(k, err)
	spec := runtime.JobSpec{Workspace: row.ID, Kind: runtime.JobRestore}
	check(k, k.bucket.RestoreJob(k.Context(), row, meta, &spec))
	folder := filepath.Join(k.TempDir(), "restored")
	check(k, os.Mkdir(folder, 0o700))
	defer os.RemoveAll(folder)
	check(k, os.WriteFile(filepath.Join(folder, "remains"), nil, 0o600))
	for range attempts {
		k.process(k.Context(), spec, folder, io.Discard)
	}
	var out bytes.Buffer
	if exit := storagejob.Run(k.Context(), bytes.NewReader(spec.Input), &out, storagejob.Dirs{Home: folder, Object: spec.ObjectDir}); exit != storagejob.ExitOK {
		k.Errorf("the restore of %s ended with %s", b.Key, out.String())
		return
	}
	first, _, _ := generation(b.Key)
	if diff := archivetest.Diff(k.want[first], archivetest.WithoutAtimes(archivetest.Snapshot(k, folder))); diff != "" {
		k.Errorf("the home restored from %s differs:\n%s", b.Key, diff)
	}
}

// number returns a number of the environment.
func number(name string, or uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil {
		return or
	}
	return n
}

// Jobs of backups, drills and restores are killed at random moments, and leaders at random steps while they
// make, remove, compact and compare backups. Some leaders only lose the database, and go on while the next one leads, and
// between terms the clock jumps to and fro. After each term every backup that is listed restores exactly, and no
// home has changed. CODEHUB_TEST_KILLS sets how many are killed, CODEHUB_TEST_SEED repeats a run.
func TestBackupsAreRestorableAfterKills(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	seed := number("CODEHUB_TEST_SEED", rand.Uint64())
	t.Logf("CODEHUB_TEST_SEED=%d", seed)
	newKilled(t, seed, 4).untilKilled(int(number("CODEHUB_TEST_KILLS", 100)), "")
}

// untilKilled runs terms until so many were killed, all or of one kind.
func (k *killed) untilKilled(most int, kind string) {
	k.Helper()
	total := func() (n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		for name, kills := range k.kills {
			if kind == "" || kind == name {
				n += kills
			}
		}
		return n
	}
	restored, terms, back := 0, 0, 0
	for began, last := time.Now(), 0; total() < most; terms++ {
		jump := time.Duration(1+k.rng.IntN(40)) * time.Hour
		if k.rng.IntN(6) == 0 { // then only requests lead to backups
			back++
			jump = -jump
		}
		k.shift(jump)
		before := map[workspace.ID]map[string]archivetest.State{}
		for _, id := range k.sorted() {
			if k.rng.IntN(5) > 0 { // an unchanged one gets no backup
				for range 1 + k.rng.IntN(4) {
					k.mutate(k.homes[id])
				}
			}
			before[id] = archivetest.WithoutAtimes(archivetest.Snapshot(k, k.homes[id])) // programs that search /tmp change times of access
			if (k.rng.IntN(4) == 0 || jump < 0 || k.future(id)) && k.pending(id) == 0 {
				k.request(id)
			}
		}
		steps := 0
		if k.rng.IntN(2) == 0 && terms > 0 {
			steps = 1 + k.rng.IntN(100)
		}
		k.term(steps)
		for id, folder := range k.homes {
			if diff := archivetest.Diff(before[id], archivetest.WithoutAtimes(archivetest.Snapshot(k, folder))); diff != "" {
				k.Fatalf("the home has changed:\n%s", diff)
			}
			manifests, _ := k.keys(id)
			for _, key := range manifests {
				if first, _, rewritten := generation(key); k.want[first] == nil && !rewritten {
					k.want[first] = before[id]
				} else if rewritten {
					k.compacted[key] = true
				}
			}
		}
		list := k.listed()
		k.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		var group sync.WaitGroup
		for i, b := range list {
			if b.State != workspace.BackupDone || b.Damage != "" {
				k.Errorf("a backup is %+v", b)
			}
			group.Go(func() { k.restore(b, 2-min(i, 2)) })
			restored++
		}
		if group.Wait(); k.Failed() {
			return
		}
		if n := total(); n/100 > last/100 {
			k.Logf("%d killed in %d terms, %s: %v, %d restored", n, terms+1, time.Since(began).Round(time.Second), k.kills, restored)
			last = n
		}
	}
	if restored == 0 {
		k.Error("no backup was restored")
	}
	k.Logf("%d killed in %d terms, the clock went back in %d: %v, %d restored, %d manifests rewritten", total(), terms, back, k.kills, restored, len(k.compacted))
}

// future reports whether the last backup of a workspace seems to be less than an interval old, or of the future.
func (k *killed) future(id workspace.ID) bool {
	return fixture.Query[bool](k, `SELECT coalesce(max(greatest(created_at, begun_at, unchanged_at, ended_at)) > now() - interval '1 hour', false) FROM home_backups WHERE workspace_id = $1`, id)
}

// sorted returns the workspaces in a fixed order.
func (k *killed) sorted() (ids []workspace.ID) {
	for id := range k.homes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// generation splits the name of a manifest: that of the first manifest of a backup has no revision.
func generation(key string) (first, revision string, rewritten bool) {
	first, rest, _ := strings.Cut(key, ".")
	revision, _, rewritten = strings.Cut(rest, ".manifest")
	return first, revision, rewritten
}

// pending is how many backups of a workspace wait or run.
func (k *killed) pending(id workspace.ID) int {
	return fixture.Query[int](k, `SELECT count(*) FROM home_backups WHERE workspace_id = $1 AND state IN ('waiting', 'running')`, id)
}
