// Package ballast keeps a part of the data folder's disk in reserve. When the disk is
// full, the reserve is given up, so that the embedded database continues and homes can
// be deleted; it is made again when there is room.
package ballast

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
)

// Settings are the settings of a Ballast, as codehub serve declares them.
type Settings struct {
	Size string `name:"ballast" env:"CODEHUB_BALLAST" default:"64m" help:"Space on the data folder's disk that is kept in reserve, and given up when the disk is full (0 = none)."`

	Bytes int64 `kong:"-"` // of Size
}

const maxBytes = 1 << 40

// Resolve checks the settings and computes Bytes. It returns an invalid one as
// *setting.Problem.
func (s *Settings) Resolve() error {
	n, err := setting.Bytes(s.Size)
	if err != nil || n != 0 && n < 1<<20 || n > maxBytes {
		return setting.Invalid("CODEHUB_BALLAST", fmt.Sprintf("%q is not a size from 1m to 1024g", s.Size), "give one like 64m, or 0 for none")
	}
	s.Bytes = n
	return nil
}

// Config is what a Ballast works with.
type Config struct {
	Dir string // the data folder, which exists
	Settings
	Log        *slog.Logger
	Conditions *health.Monitor
}

// Ballast is the reserve in one data folder.
type Ballast struct {
	cfg  Config
	full *health.Condition
	stat func(dir string) (Disk, error)

	mu   sync.Mutex
	kept bool
	disk Disk // as of the last check
}

// Name is the folder of the reserve in the data folder.
const Name = "ballast"

// every is the interval of checks, each of which is one call to the kernel.
const every = time.Second

// New returns a Ballast. It takes over the reserve that an earlier process has made.
func New(cfg Config) *Ballast {
	b := &Ballast{cfg: cfg, stat: statDisk, full: cfg.Conditions.New(health.Config{
		Name: "data-disk", Failing: "the disk of the data folder is full", Resolved: "the disk of the data folder has space again",
		Level: slog.LevelError, Remind: 10 * time.Minute, Log: cfg.Log,
	})}
	b.full.Await()
	b.kept = b.complete()
	return b
}

// Run checks the disk until ctx ends.
func (b *Ballast) Run(ctx context.Context) error {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		b.Check()
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Check gives the reserve up or makes it, as the disk requires.
func (b *Ballast) Check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	d, err := b.stat(b.cfg.Dir)
	if err != nil {
		b.full.Set(fmt.Errorf("read the free space of the data folder: %w", err))
		return
	}
	b.disk = d
	switch decide(d, b.kept, b.cfg.Bytes) {
	case remove:
		if err = os.RemoveAll(b.path("")); err == nil {
			b.kept = false
			b.cfg.Log.Warn("ballast removed because the disk is full", "bytes", b.cfg.Bytes, "inodes", nodes, "free", d.Free, "free_inodes", d.FreeNodes)
		}
	case create:
		if err = b.make(); err == nil {
			b.kept = true
			b.cfg.Log.Info("ballast created", "bytes", b.cfg.Bytes, "inodes", nodes)
		}
	}
	text := trouble(d, b.kept, b.cfg.Bytes)
	if err != nil {
		text = strings.TrimPrefix(text+"; "+err.Error(), "; ")
	}
	b.full.Set(health.Error(text))
}

// State returns the disk as of the last check, and the size of the reserve.
func (b *Ballast) State() (Disk, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.kept {
		return b.disk, 0
	}
	return b.disk, b.cfg.Bytes
}

func (b *Ballast) path(name string) string { return filepath.Join(b.cfg.Dir, Name, name) }

const spaceName = "space"

// complete reports whether the reserve is there with its present size. It removes any
// other.
func (b *Ballast) complete() bool {
	entries, err := os.ReadDir(b.path(""))
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	info, statErr := os.Stat(b.path(spaceName))
	if err == nil && statErr == nil && b.cfg.Bytes > 0 && info.Size() == b.cfg.Bytes && len(entries) == nodes+1 {
		return true
	}
	if err := os.RemoveAll(b.path("")); err != nil {
		b.cfg.Log.Warn("remove the ballast failed", "err", err)
	}
	return false
}

// make creates the reserve: one file with the space, and many empty ones.
func (b *Ballast) make() (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make the ballast: %w", err), os.RemoveAll(b.path("")))
		}
	}()
	if err := os.MkdirAll(b.path(""), 0o700); err != nil {
		return err
	}
	for n := range nodes {
		f, err := os.OpenFile(b.path(strconv.Itoa(n)), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return allocate(b.path(spaceName), b.cfg.Bytes)
}

// allocate creates a file whose blocks are allocated.
func allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = fillFile(f, size)
	}
	return errors.Join(err, f.Close())
}

// fillFile writes random bytes, because a file system may compress others.
func fillFile(f *os.File, size int64) error {
	part := make([]byte, 1<<20)
	for size > 0 {
		_, _ = rand.Read(part)
		n, err := f.Write(part[:min(size, int64(len(part)))])
		if err != nil {
			return err
		}
		size -= int64(n)
	}
	return f.Sync()
}

func statDisk(dir string) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Disk{}, err
	}
	block := int64(st.Frsize)
	return Disk{
		Free: int64(st.Bavail) * block, Total: int64(st.Blocks) * block,
		FreeNodes: int64(st.Ffree), Nodes: int64(st.Files),
	}, nil
}
