package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	dataName    = "data"
	newDataName = "data.new"
	runName     = "run"
	logName     = "log"
	startupLog  = logName + "/startup.log"
	clusterLock = "postgres.lock"
)

// layout is the postgres folder in the data folder. All access uses an os.Root: the
// folder belongs to a user who may have fewer rights than the server, so the server
// must not follow a link out of it.
type layout struct {
	base string // absolute
	acc  accounts
	root *os.Root
}

// openLayout creates missing folders and opens them.
func openLayout(dir string, acc accounts) (*layout, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find data folder: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data folder: %w", err)
	}
	base := filepath.Join(dir, "postgres")
	if target, err := filepath.EvalSymlinks(base); err == nil {
		base = target // the folder may be on another disk
	}
	l := &layout{base: base, acc: acc}
	parent, err := os.OpenRoot(filepath.Dir(base))
	if err != nil {
		return nil, fmt.Errorf("open data folder: %w", err)
	}
	defer parent.Close()
	if err := l.folder(parent, filepath.Base(base)); err != nil {
		return nil, err
	}
	if l.root, err = parent.OpenRoot(filepath.Base(base)); err != nil {
		return nil, fmt.Errorf("open database folder: %w", err)
	}
	if err := l.subfolders(); err != nil {
		return nil, errors.Join(err, l.root.Close())
	}
	return l, nil
}

func (l *layout) subfolders() error {
	return errors.Join(l.folder(l.root, runName), l.folder(l.root, logName))
}

func (l *layout) path(name string) string { return filepath.Join(l.base, name) }

// folder makes sure that name in root is a folder of postgres's user with mode 0700.
func (l *layout) folder(root *os.Root, name string) error {
	path := filepath.Join(root.Name(), name)
	err := root.Mkdir(name, 0o700)
	if err == nil {
		if l.acc.switched() {
			err = root.Chown(name, l.acc.postgres.uid, l.acc.postgres.gid)
		}
		if err != nil {
			return fmt.Errorf("create %s: %w", path, err)
		}
		return nil
	}
	if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create %s: %w", path, err)
	}
	fi, err := root.Stat(name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a folder", path)
	}
	if err := l.checkOwner(path, fi); err != nil {
		return err
	}
	if fi.Mode().Perm() != 0o700 {
		if err := root.Chmod(name, 0o700); err != nil {
			return fmt.Errorf("protect %s: %w", path, err)
		}
	}
	return nil
}

// checkOwner refuses files of another user. The server does not change the owner
// itself, even as root: that user could have put links to other files there.
func (l *layout) checkOwner(path string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == l.acc.postgres.uid {
		return nil
	}
	owner := "uid " + strconv.Itoa(int(st.Uid))
	if name := userName(int(st.Uid)); name != "" {
		owner = name
	}
	return fmt.Errorf("%s belongs to %s, but PostgreSQL would run as %s: start codehub as the user it was first started as, "+
		"or, if the folder was copied here, stop codehub and run: chown -R %s: %s",
		path, owner, l.acc.postgres.name, l.acc.postgres.name, l.base)
}

// clusterVersion returns the major version that created the cluster; 0 if there is none.
func (l *layout) clusterVersion() (int, error) {
	fi, err := l.root.Stat(dataName)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at the database: %w", err)
	}
	if err := l.checkOwner(l.path(dataName), fi); err != nil {
		return 0, err
	}
	version, err := l.read(dataName + "/PG_VERSION")
	if errors.Is(err, fs.ErrNotExist) {
		if entries, err := fs.ReadDir(l.root.FS(), dataName); err == nil && len(entries) == 0 {
			return 0, nil
		}
		return 0, fmt.Errorf("%s is not a PostgreSQL database (it has no PG_VERSION), and codehub does not touch it: "+
			"put the right folder in its place, or move it away to start with an empty database", l.path(dataName))
	}
	if err != nil {
		return 0, fmt.Errorf("read the database's version: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil {
		return 0, fmt.Errorf("read the database's version: %w", err)
	}
	return major, nil
}

// read returns the content of a small file. It does not block on a FIFO.
func (l *layout) read(name string) ([]byte, error) {
	f, err := l.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file", l.path(name))
	}
	return io.ReadAll(f)
}

// write replaces the file atomically and durably, unless its content is the same.
func (l *layout) write(name, content string) error {
	if old, err := l.read(name); err == nil && bytes.Equal(old, []byte(content)) {
		return nil
	}
	temp := name + ".new"
	f, err := l.create(temp)
	if err != nil {
		return fmt.Errorf("write %s: %w", l.path(name), err)
	}
	_, err = f.WriteString(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = l.root.Rename(temp, name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", l.path(name), err)
	}
	return nil
}

// create creates an empty file of postgres's user and replaces an existing one.
func (l *layout) create(name string) (*os.File, error) {
	if err := l.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := l.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if l.acc.switched() {
		if err := f.Chown(l.acc.postgres.uid, l.acc.postgres.gid); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

// writeConf updates the settings in the cluster folder.
func (l *layout) writeConf(folder string, more map[string]string) error {
	for name, content := range confFiles(l.acc, more) {
		if err := l.write(folder+"/"+name, content); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder makes renames in the postgres folder durable.
func (l *layout) syncFolder() error {
	f, err := l.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
