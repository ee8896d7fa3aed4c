package installation

import (
	"net/url"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/server/config"
	"codehub/internal/storage/bucket"
)

// What is kept free of a disk is kept by storage jobs, too.
func TestBucketKeepsTheReserve(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := &url.URL{Scheme: "file", Path: dir}
	b, err := OpenBucket(config.Config{Archives: at, ArchiveURL: at.String(), DataDir: dir, Bucket: bucket.Settings{MinFreeShare: 0.07}, Version: "test"}, uuid.NewString(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.MinFreeShare != 0.07 {
		t.Errorf("%g", b.MinFreeShare)
	}
}
