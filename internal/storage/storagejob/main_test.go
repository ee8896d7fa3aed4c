package storagejob

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
)

// testJob is set in a process that is a job: its Dirs, as JSON.
const testJob = "CODEHUB_TEST_STORAGE_JOB"

// testKillAt is the stage at whose beginning that process kills itself.
const testKillAt = "CODEHUB_TEST_KILL_AT"

// testCopy is set in a process that is a copy: FROM:TO.
const testCopy = "CODEHUB_TEST_COPY"

// testPriority is set in a process that lowers its priority and prints that of its threads.
const testPriority = "CODEHUB_TEST_PRIORITY"

func TestMain(m *testing.M) {
	if os.Getenv(testPriority) != "" {
		lowerPriority()
		threads, err := filepath.Glob("/proc/self/task/*/stat")
		for _, name := range threads {
			stat, failed := os.ReadFile(name)
			_, rest, _ := strings.Cut(string(stat), ") ")
			fmt.Println(strings.Fields(rest)[16])
			err = errors.Join(err, failed)
		}
		if err != nil {
			os.Exit(ExitFailed)
		}
		os.Exit(ExitOK)
	}
	if from, to, ok := strings.Cut(os.Getenv(testCopy), ":"); ok {
		if err := Copy(context.Background(), from, to, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(ExitFailed)
		}
		os.Exit(ExitOK)
	}
	if dirs := os.Getenv(testJob); dirs != "" {
		os.Exit(jobProcess(dirs))
	}
	os.Exit(m.Run())
}

func jobProcess(encoded string) int {
	var dirs Dirs
	if err := json.Unmarshal([]byte(encoded), &dirs); err != nil {
		panic(err)
	}
	ctx, stop := untilSignal()
	defer stop()
	j := newJob(os.Stdout, dirs)
	j.stage = func(stage string) {
		if stage == os.Getenv(testKillAt) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	return j.run(ctx, os.Stdin)
}

const (
	testWorkspace = "01900000-0000-7000-8000-000000000001"
	testClaim     = "01900000-0000-7000-8000-00000000000a"
)

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func testMeta() archive.Meta {
	return archive.Meta{
		Format: archive.Format, CodehubVersion: "test", WorkspaceID: testWorkspace, WorkspaceName: "home", Owner: "alice",
		ArchiveOpID: testClaim, CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

func archiveSpec() Spec { return Spec{Kind: "archive", Claim: testClaim, Meta: testMeta()} }

func restoreSpec(meta *archive.Meta) Spec {
	return Spec{Kind: "restore", Claim: "01900000-0000-7000-8000-00000000000b", Meta: *meta}
}

func encode(tb testing.TB, v any) []byte {
	tb.Helper()
	b, err := json.Marshal(v)
	check(tb, err)
	return b
}

// report is what a job has reported.
type report struct {
	exit     int
	progress []Progress
	result   *Result
}

func parseReport(tb testing.TB, exit int, out []byte) report {
	tb.Helper()
	r := report{exit: exit}
	for line := range strings.Lines(string(out)) {
		var e Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			tb.Fatalf("the job reported %q: %v", line, err)
		}
		if r.result != nil {
			tb.Fatalf("the job reported %q after its result", line)
		}
		if e.Progress != nil {
			r.progress = append(r.progress, *e.Progress)
		}
		r.result = e.Result
	}
	return r
}

// do runs a job and expects a result.
func do(ctx context.Context, tb testing.TB, spec Spec, dirs Dirs) report {
	tb.Helper()
	return doJob(ctx, tb, spec, dirs, func(*job) {})
}

func doJob(ctx context.Context, tb testing.TB, spec Spec, dirs Dirs, change func(*job)) report {
	tb.Helper()
	var out bytes.Buffer
	j := newJob(&out, dirs)
	change(j)
	exit := j.run(ctx, bytes.NewReader(encode(tb, spec)))
	r := parseReport(tb, exit, out.Bytes())
	if r.result == nil || r.result.Claim != spec.Claim || r.result.Kind != spec.Kind {
		tb.Fatalf("the result is %+v", r.result)
	}
	if (r.result.Error == nil) != (exit == ExitOK) {
		tb.Fatalf("exit code %d with %+v", exit, r.result.Error)
	}
	return r
}

func succeed(tb testing.TB, spec Spec, dirs Dirs) report {
	tb.Helper()
	r := do(tb.Context(), tb, spec, dirs)
	if r.result.Error != nil {
		tb.Fatalf("%s: %s", r.result.Error.Kind, r.result.Error.Message)
	}
	return r
}

func (r report) wantError(tb testing.TB, kind ErrorKind) {
	tb.Helper()
	switch {
	case r.result.Error == nil:
		tb.Errorf("the job succeeded, want %s", kind)
	case r.result.Error.Kind != kind:
		tb.Errorf("%s: %s; want %s", r.result.Error.Kind, r.result.Error.Message, kind)
	case r.result.Stats != (archive.Stats{}):
		tb.Errorf("a failed job has stats %+v", r.result.Stats)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// smallHome creates a home with a few files.
func smallHome(tb testing.TB) string {
	tb.Helper()
	home := tb.TempDir()
	for i := range 20 {
		dir := filepath.Join(home, fmt.Sprint("folder-", i%4))
		check(tb, os.MkdirAll(dir, 0o755))
		check(tb, os.WriteFile(filepath.Join(dir, fmt.Sprint("file-", i)), randomBytes(i*10_000), 0o640))
	}
	check(tb, os.Symlink("/etc/passwd", filepath.Join(home, "link")))
	check(tb, unix.Chmod(home, 0o2750))
	return home
}

func readMeta(tb testing.TB, object string) *archive.Meta {
	tb.Helper()
	f, err := os.Open(filepath.Join(object, archive.MetaKey(ObjectName)))
	check(tb, err)
	defer f.Close()
	meta, err := archive.ReadMeta(f)
	check(tb, err)
	return meta
}

func exists(tb testing.TB, path string) bool {
	tb.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	return err == nil
}
