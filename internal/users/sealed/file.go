package sealed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"codehub/internal/base/setting"
)

// Settings are the settings of the keys, as codehub serve declares them.
type Settings struct {
	File string `name:"secret-key-file" env:"CODEHUB_SECRET_KEY_FILE" help:"File with the keys that encrypt secrets and Git tokens in the database (default: secret.key in the data folder with the embedded database, otherwise none)."`
}

// DefaultFile is the name of the key file in the data folder.
const DefaultFile = "secret.key"

const fileSetting = "CODEHUB_SECRET_KEY_FILE"

// Resolve checks the file. It returns an invalid setting as *setting.Problem. A relative name is
// that of a credential of systemd, as with other secrets.
func (s *Settings) Resolve() error {
	if s.File == "" {
		return nil
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" && !filepath.IsAbs(s.File) {
		s.File = filepath.Join(dir, s.File)
	}
	abs, err := filepath.Abs(s.File)
	if err == nil {
		s.File = abs
		_, err = Open(abs)
	}
	if err != nil {
		return setting.Invalid(fileSetting, err.Error(), "name a file with a line of `codehub secret-key new` that codehub's user can read")
	}
	return nil
}

// OpenOrCreate is Open of a file that is made with a new key if it does not exist.
func OpenOrCreate(file string) (*Ring, error) {
	r, err := Open(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	_, line := NewKey()
	temporary, err := writeBeside(file, line+"\n", nil)
	if err != nil {
		return nil, err
	}
	err = os.Link(temporary, file) // unlike a rename it replaces no file that another process has made
	if err = errors.Join(err, os.Remove(temporary)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := syncFolder(file); err != nil {
		return nil, err
	}
	return Open(file)
}

// Add puts a new key at the beginning of the file, which encrypts from then on.
func (r *Ring) Add() (id string, err error) {
	if r.file == "" {
		return "", noFile()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	file, err := filepath.EvalSymlinks(r.file)
	if err != nil {
		return "", err
	}
	// Another process that adds a key at the same moment must not lose this one.
	folder, err := os.Open(filepath.Dir(file))
	if err != nil {
		return "", err
	}
	defer folder.Close() // which ends the lock
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the folder of the keys: %w", err)
	}
	r.state = fileState{} // another process may have changed it just now
	if err := r.refresh(); err != nil {
		return "", err
	}
	like, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	id, line := NewKey()
	lines := []string{line}
	for _, k := range r.keys {
		lines = append(lines, k.line)
	}
	temporary, err := writeBeside(file, strings.Join(lines, "\n")+"\n", like)
	if err != nil {
		return "", err
	}
	if err := os.Rename(temporary, file); err != nil {
		return "", errors.Join(err, os.Remove(temporary))
	}
	r.state = fileState{}
	return id, errors.Join(syncFolder(file), r.refresh())
}

// writeBeside writes a file in the folder of another one, and flushes it to the disk. It has the
// mode and the owner of like; nil: only the process's user may read it.
func writeBeside(file, text string, like fs.FileInfo) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return "", err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if like != nil {
		if err := f.Chmod(like.Mode().Perm()); err != nil {
			return "", err
		}
		if owner, ok := like.Sys().(*syscall.Stat_t); ok {
			if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
				return "", fmt.Errorf("give it the owner of %s: %w", file, err)
			}
		}
	}
	if _, err := f.WriteString(text); err != nil {
		return "", err
	}
	return f.Name(), f.Sync()
}

func syncFolder(file string) error {
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
