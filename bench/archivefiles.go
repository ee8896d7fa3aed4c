package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/uuid"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// archiveFiles measures reads from an archive on S3, in turns with those of the whole and of plain objects.
func archiveFiles(ctx context.Context, o options) error {
	return onCluster(ctx, func(tb *standIn) error {
		a := archiveOnS3(ctx, tb)
		measures := []func() (time.Duration, error){timed(func() (io.ReadCloser, error) {
			x, err := a.bucket.Index(ctx, a.key, a.stats.Size)
			if err == nil {
				_, _, err = x.List(ctx, "project-00/src", "", 500, 4<<20)
			}
			return nil, err
		}), timed(func() (io.ReadCloser, error) { return a.bucket.Open(ctx, a.key, 0) })}
		for _, name := range a.files {
			measures = append(measures, timed(func() (io.ReadCloser, error) {
				x, err := a.bucket.Index(ctx, a.key, a.stats.Size)
				if err != nil {
					return nil, err
				}
				r, _, err := x.Open(ctx, name)
				return r, err
			}), timed(func() (io.ReadCloser, error) { return a.bucket.Store.Get(ctx, "plain/"+filepath.Base(name), 0) }))
		}
		took, err := timesInTurns(o.n, measures...)
		tb.check(err)
		all := median(took[1])
		fmt.Printf("files, an archive of %d MiB with %d entries on S3: download of the whole %s; list of a folder %s, %.4f times that\n",
			a.stats.Size>>20, a.stats.Entries, ms(all), ms1(median(took[0])), float64(median(took[0]))/float64(all))
		for i, name := range a.files {
			one, plain := median(took[2+2*i]), median(took[3+2*i])
			ratio := float64(one) / float64(plain)
			fmt.Printf("files, %s of %d KiB: %s, %.4f times the whole; plain GET %s: %.1f times as long (at most 5): %s\n",
				filepath.Base(name), a.sizes[i]>>10, ms1(one), float64(one)/float64(all), ms1(plain), ratio, verdict(ratio <= 5))
		}
		return nil
	})
}

// check ends the figure if there is an error.
func (s *standIn) check(err error) {
	if err != nil {
		s.Fatal(err)
	}
}

// timed returns how long open and reading the result to its end take.
func timed(open func() (io.ReadCloser, error)) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		begun := time.Now()
		r, err := open()
		if err != nil || r == nil {
			return time.Since(begun), err
		}
		_, err = io.Copy(io.Discard, r)
		return time.Since(begun), errors.Join(err, r.Close())
	}
}

// remoteArchive is an archive in a bucket on S3, which also has some of its files as objects.
type remoteArchive struct {
	bucket *bucket.Bucket
	key    string
	stats  archive.Stats
	files  []string
	sizes  []int64 // of the files
}

// archiveOnS3 archives a home of small and large files.
func archiveOnS3(ctx context.Context, tb *standIn) *remoteArchive {
	mib, err := envInt("CODEHUB_BENCH_MIXED_MIB", 4096)
	text, failed := sourceText(ctx)
	tb.check(errors.Join(err, failed))
	server, home := s3test.Start(tb, "bench"), tb.TempDir()
	tb.check(errors.Join(fillSmall(text, 42_000)(home), fillMixed(text, mib)(home), os.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey), os.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)))
	s, err := store.Open(server.URL("bench/homes"))
	tb.check(err)
	a := &remoteArchive{files: []string{"project-02/src/pkg500/file25000.go", "file-000", "file-001"}}
	a.bucket, err = bucket.New(bucket.Config{Store: s, Installation: uuid.NewString(), Version: "bench"})
	tb.check(err)
	a.key = a.bucket.Key(workspace.ID(uuid.NewString()), uuid.NewString())
	a.stats, err = archive.PackTo(ctx, home, archive.PackOptions{}, func(ctx context.Context, r io.Reader) (int64, error) { return s.Put(ctx, a.key, r) })
	tb.check(err)
	for _, name := range a.files {
		content, err := os.ReadFile(filepath.Join(home, name))
		tb.check(err)
		n, err := s.Put(ctx, "plain/"+filepath.Base(name), bytes.NewReader(content))
		tb.check(err)
		a.sizes = append(a.sizes, n)
	}
	return a
}

// indexCost measures the user time of the job that packs a home, in turns with a binary that writes no index.
func indexCost(ctx context.Context, o options) error {
	return onCluster(ctx, func(tb *standIn) error {
		root, claim := tb.TempDir(), uuid.NewString()
		files, err := envInt("CODEHUB_BENCH_SMALL_FILES", 100_000)
		text, failed := sourceText(ctx)
		tb.check(errors.Join(err, failed, os.Mkdir(root+runtime.JobObjectDir, 0o755)))
		tb.check(fillSmall(text, files)(root + runtime.JobHomeDir))
		orders, err := json.Marshal(storagejob.Spec{Kind: string(runtime.JobArchive), Claim: claim, Meta: archive.Meta{
			Format: archive.Format, CodehubVersion: "bench", WorkspaceID: claim, WorkspaceName: "bench", Owner: "bench", ArchiveOpID: claim, CreatedAt: time.Now()}})
		tb.check(err)
		var packs []func() (time.Duration, error)
		for i, binary := range []string{o.binary, os.Getenv("CODEHUB_TEST_EARLIER_BINARY")} {
			name := fmt.Sprintf("/codehub-%d", i)
			b, err := os.ReadFile(binary)
			tb.check(errors.Join(err, os.WriteFile(root+name, b, 0o755)))
			packs = append(packs, func() (time.Duration, error) {
				cmd := exec.CommandContext(ctx, name, runtime.JobCommand)
				cmd.Dir, cmd.Stdin, cmd.SysProcAttr = "/", bytes.NewReader(orders), &syscall.SysProcAttr{Chroot: root}
				if out, err := cmd.CombinedOutput(); err != nil {
					return 0, fmt.Errorf("%s: %w: %s", binary, err, out)
				}
				return cmd.ProcessState.UserTime(), nil
			})
		}
		took, err := timesInTurns(o.n+1, packs...)
		tb.check(err)
		with, without := median(took[0][1:]), median(took[1][1:]) // the first round reads from the disk
		ratio := float64(with) / float64(without)
		fmt.Printf("index, user time of packing %d small files: %s, without an index %s: %.3f times (at most 1.02): %s\n", files, ms(with), ms(without), ratio, verdict(ratio <= 1.02))
		return nil
	})
}
