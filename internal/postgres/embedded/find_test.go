package embedded

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestFindWithoutServer(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if url, err := Find(ctx, dir); err == nil {
		t.Errorf("found %s although no postgres runs", url)
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if pid, err := listenerPID(filepath.Join(dir, "postgres", runName, socketName)); pid != 0 || err != nil {
		t.Errorf("Find started a process: %d, %v", pid, err)
	}
}
