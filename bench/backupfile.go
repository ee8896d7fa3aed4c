package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"codehub/internal/archive"
	"codehub/internal/storage/store"
	"codehub/internal/testing/s3test"
)

// remoteGeneration is a generation in a bucket on S3, which also has some of its files as objects.
type remoteGeneration struct {
	store    store.Store
	manifest string
	totals   archive.Totals
	requests atomic.Int64
}

// measureBackupFile measures the read of one file of a generation on S3, in turns with a plain GET of the same bytes.
func measureBackupFile(ctx context.Context, o options) error {
	mib, err := envInt("CODEHUB_BENCH_BACKUP_FILE_MIB", 2048)
	if err != nil {
		return err
	}
	return onCluster(ctx, func(tb *standIn) error {
		home := tb.TempDir()
		text, err := sourceText(ctx)
		tb.check(err)
		tb.check(errors.Join(fillSmall(text, 42_000)(home), fillMixed(text, mib)(home), writeHome(filepath.Join(home, "medium"), text[:1<<20])))
		g := generationOnS3(ctx, tb, home)
		for _, name := range []string{"project-02/src/pkg500/file25000.go", "medium", "file-000", "file-001"} {
			content, err := os.ReadFile(filepath.Join(home, name))
			tb.check(err)
			plain := "plain/" + filepath.Base(name)
			_, err = g.store.Put(ctx, plain, bytes.NewReader(content))
			tb.check(err)
			g.requests.Store(0)
			took, err := timesInTurns(o.n,
				timed(func() (io.ReadCloser, error) { return g.open(ctx, name) }),
				timed(func() (io.ReadCloser, error) { return g.store.Get(ctx, plain, 0) }),
				timed(func() (io.ReadCloser, error) { _, err := g.read(ctx); return nil, err }))
			tb.check(err)
			requests := (g.requests.Load() - int64(o.n)) / int64(o.n) // without those of the last measure
			one, rival := median(took[0]), median(took[1])
			ratio := float64(one) / float64(rival)
			fmt.Printf("backup-file, %s of %d KiB of a backup with %d entries and %d MiB on S3: %d requests (at most 2 up to 1 MiB): %s; %s, plain GET %s: %.1f times as long (at most 5): %s; the manifest alone %s\n",
				filepath.Base(name), len(content)>>10, g.totals.Entries, g.totals.Bytes>>20, requests, verdict(requests <= 2 || len(content) > 1<<20),
				ms1(one), ms1(rival), ratio, verdict(ratio <= 5), ms1(median(took[2])))
		}
		return nil
	})
}

// generationOnS3 backs a home up to a server of the figure's own.
func generationOnS3(ctx context.Context, tb *standIn, home string) *remoteGeneration {
	server := s3test.Start(tb, "bench")
	tb.check(errors.Join(os.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey), os.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)))
	s, err := store.Open(server.URL("bench/homes"))
	tb.check(err)
	g := &remoteGeneration{store: s, manifest: archive.ManifestName(time.Now(), "bench")}
	m, err := archive.Backup(ctx, home, g.manifest, func(ctx context.Context, name string, content []byte) error {
		_, err := s.Put(ctx, name, bytes.NewReader(content))
		return err
	}, archive.BackupOptions{})
	tb.check(err)
	g.totals = m.Totals()
	return g
}

// read reads the manifest.
func (g *remoteGeneration) read(ctx context.Context) (*archive.Manifest, error) {
	g.requests.Add(1)
	r, err := g.store.Get(ctx, g.manifest, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return archive.ReadManifest(r)
}

// open opens a file, without anything that an earlier request has fetched.
func (g *remoteGeneration) open(ctx context.Context, name string) (io.ReadCloser, error) {
	m, err := g.read(ctx)
	if err != nil {
		return nil, err
	}
	r, _, err := m.Open(ctx, func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
		g.requests.Add(1)
		return g.store.GetRange(ctx, name, offset, length)
	}, name)
	return r, err
}
