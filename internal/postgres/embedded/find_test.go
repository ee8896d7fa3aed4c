package embedded

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A command uses the database of a running server, and does not disturb it.
func TestFindRunningServer(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"short path": dataDir(t),
		"deep path":  filepath.Join(dataDir(t), strings.Repeat("deep/", 24)),
	} {
		c, err := startChild(t, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		url, err := Find(t.Context(), dir)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if url != c.url {
			t.Errorf("%s: found %s, the server has %s", name, url, c.url)
		}
		if n := query[int](t, url, "SELECT 42"); n != 42 {
			t.Errorf("%s: SELECT 42 = %d", name, n)
		}
	}
}

func TestFindWithoutServer(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	if s, err := Start(t.Context(), Config{Dir: dir, Settings: quick}); err != nil {
		t.Fatal(err)
	} else if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if url, err := Find(ctx, dir); err == nil {
		t.Errorf("found %s although no postgres runs", url)
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v", err)
	}
	if p, err := listener(filepath.Join(dir, "postgres", runName, socketName)); p != nil || err != nil {
		t.Errorf("Find started a process: %v, %v", p, err)
	}
}
