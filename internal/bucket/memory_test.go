package bucket

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"codehub/internal/archive/store/s3test"
	"codehub/internal/runtime"
	"codehub/internal/storagejob"
)

// inJob is set in a process that runs a storage job: its Dirs, as JSON.
const inJob = "CODEHUB_TEST_STORAGE_JOB"

// jobProcess runs the job of a container.
func jobProcess(encoded string) int {
	var dirs storagejob.Dirs
	if err := json.Unmarshal([]byte(encoded), &dirs); err != nil {
		panic(err)
	}
	return storagejob.Run(context.Background(), os.Stdin, os.Stdout, dirs)
}

// memoryOf is the size of the home that is archived and restored. The memory of a job does not
// depend on it.
const memoryOf = 512 << 20

// BenchmarkJobMemory fails if a job uses more memory than allowed, not counting the page cache.
func BenchmarkJobMemory(b *testing.B) {
	size := memoryOf
	if s := os.Getenv("CODEHUB_BENCH_BYTES"); s != "" {
		var err error
		size, err = strconv.Atoi(s)
		check(b, err)
	}
	home := b.TempDir()
	text := bytes.Repeat([]byte("half of it can be compressed, as source code can; "), 1<<20/50)
	for i := 0; i < size; i += 32 << 20 {
		half := append(randomBytes(16<<20+i>>20), bytes.Repeat(text, 16)...)
		check(b, os.WriteFile(filepath.Join(home, fmt.Sprint("large-", i)), half, 0o600))
	}
	for i := range 2000 {
		check(b, os.WriteFile(filepath.Join(home, fmt.Sprint("small-", i)), text[:i], 0o600))
	}
	run := func(b *testing.B, f *fixture, what string, spec runtime.JobSpec, home string) {
		dirs, err := json.Marshal(f.dirs(b, spec, home))
		check(b, err)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), inJob+"="+string(dirs), "GOMEMLIMIT=220MiB")
		cmd.Stdin = bytes.NewReader(spec.Input)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		check(b, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		peak := 0
		for {
			select {
			case err := <-ended:
				if err != nil {
					b.Fatalf("%s: %v: %s", what, err, out.String())
				}
				b.ReportMetric(float64(peak)/1024, "MiB/"+what)
				if peak >= 256<<10 {
					b.Errorf("%s uses %d MiB at its peak", what, peak/1024)
				}
				return
			case <-time.After(5 * time.Millisecond):
				status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
				if m := regexp.MustCompile(`RssAnon:\s+(\d+)`).FindSubmatch(status); m != nil {
					kib, err := strconv.Atoi(string(m[1]))
					check(b, err)
					peak = max(peak, kib)
				}
			}
		}
	}
	for b.Loop() {
		for _, f := range []*fixture{newFolder(b), newS3On(b, s3test.Start(b, "the-bucket"), "p")} {
			kind := "folder"
			if f.server != nil {
				kind = "s3"
			}
			row := newRow()
			run(b, f, kind+"-archive", f.archiveJob(b, row), home)
			row.ArchiveKey = f.Key(row.ID, row.OpID)
			run(b, f, kind+"-restore", f.restoreJob(b, row), b.TempDir())
		}
	}
	b.ReportMetric(0, "ns/op")
}
