package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// tarball is the rival's archive of a home.
type tarball struct {
	path string
	took time.Duration
	cpu  time.Duration
	size int64
}

// tar packs a home with tar and zstd.
func (s *storage) tar(ctx context.Context, h *home) (tarball, error) {
	s.count++
	t := tarball{path: filepath.Join(s.dir, fmt.Sprintf("rival-%d.tar.zst", s.count))}
	begun := time.Now()
	var err error
	if t.cpu, err = s.shell(ctx, `tar -c -C "$0" . | zstd -q -T0 -3 -o "$1" && sync`, h.dir, t.path); err != nil {
		return t, err
	}
	t.took = time.Since(begun)
	st, err := os.Stat(t.path)
	if err != nil {
		return t, err
	}
	t.size = st.Size()
	return t, nil
}

// untar unpacks a tarball into a new home.
func (s *storage) untar(ctx context.Context, t tarball) (took, cpu time.Duration, err error) {
	h, err := s.newVolume(ctx)
	if err != nil {
		return 0, 0, err
	}
	syncDisks()
	begun := time.Now()
	cpu, err = s.shell(ctx, `zstd -q -dc "$0" | tar -x -C "$1" && sync`, t.path, h.dir)
	return time.Since(begun), cpu, err
}

// warm reads a home as the rival does, so that no measurement includes the
// first update of access times.
func (s *storage) warm(ctx context.Context, h *home) error {
	_, err := s.shell(ctx, `tar -c -C "$0" . | cat > /dev/null`, h.dir)
	return err
}

// shell runs a script and returns its processor time, including its child
// processes.
func (s *storage) shell(ctx context.Context, script string, args ...string) (time.Duration, error) {
	script = "set -o pipefail; " + script
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", script}, args...)...)
	if s.cgroup != "" {
		cmd.Args[2] = `echo $$ > "$SHARE/cgroup.procs" && ` + script
		cmd.Env = append(os.Environ(), "SHARE="+s.cgroup)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}
