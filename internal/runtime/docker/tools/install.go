package tools

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent/program"
)

const (
	// completeFile holds the digest of a complete tree, and is written last.
	completeFile = ".complete"
	lockFile     = ".lock" // locked while the tree is filled
)

// InstallIDE installs the IDE's tree with the extensions of a folder of .vsix files;
// "": none.
func InstallIDE(from, to, digest, vsix string) error {
	return installTree(from, to, digest, func() error {
		if vsix == "" {
			return nil
		}
		bundled := filepath.Join(to, bundledDir)
		if _, err := os.Stat(bundled); err != nil {
			return fmt.Errorf("the IDE has no folder for the extensions of CODEHUB_EXTENSIONS_DIR: %w", err)
		}
		return unpackExtensions(vsix, bundled)
	})
}

// installTree copies a tree to a directory and completes it with add, unless the complete
// tree with the digest is there. Concurrent calls, also in other containers, wait for each
// other. Owners are root, times are not kept.
func installTree(from, to, digest string, add func() error) error {
	complete := func() bool {
		found, err := os.ReadFile(filepath.Join(to, completeFile))
		return err == nil && string(found) == digest
	}
	if complete() { // without the lock, which root in a workspace could hold
		return nil
	}
	lock, err := os.OpenFile(filepath.Join(to, lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // also unlocks it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the volume: %w", err)
	}
	if complete() {
		return nil
	}
	if err := removeAllBut(to, lockFile); err != nil {
		return err
	}
	if err := copyTree(from, to); err != nil {
		return err
	}
	if err := add(); err != nil {
		return err
	}
	if err := unix.Syncfs(int(lock.Fd())); err != nil {
		return fmt.Errorf("sync the volume: %w", err)
	}
	part := filepath.Join(to, completeFile+"-part")
	if err := os.WriteFile(part, []byte(digest), 0o444); err != nil {
		return err
	}
	if err := os.Rename(part, filepath.Join(to, completeFile)); err != nil {
		return err
	}
	if err := unix.Syncfs(int(lock.Fd())); err != nil {
		return fmt.Errorf("sync the volume: %w", err)
	}
	return nil
}

func removeAllBut(dir, kept string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == kept {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyTree copies folders, files and symbolic links. All become readable for everyone,
// and nothing is writable or runs as its owner.
func copyTree(from, to string) error {
	buffer := make([]byte, 1<<20)
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		switch entry.Type() {
		case fs.ModeDir:
			if path == from {
				return os.Chmod(to, 0o755)
			}
			return os.Mkdir(target, 0o755)
		case fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case 0:
			return copyFile(path, target, buffer)
		}
		return fmt.Errorf("%s is neither a file, a folder nor a link", path)
	})
}

func copyFile(from, to string, buffer []byte) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{in}, buffer)
	return errors.Join(err, out.Chmod(sharedMode(info.Mode())), out.Close())
}

// sharedMode is the mode of a file that everyone may read, and run if its owner may.
func sharedMode(mode fs.FileMode) fs.FileMode {
	if mode&0o111 != 0 {
		return 0o555
	}
	return 0o444
}

// InstallAgent puts the agent that has the digest into the directory, unless it is there
// already: the one in this executable, or else this executable. A reader sees the whole file
// or none.
func InstallAgent(dir, digest string) error {
	open := func() (io.ReadCloser, error) {
		self, err := os.Executable()
		if err != nil {
			return nil, err
		}
		return os.Open(self)
	}
	switch has, err := program.Digest(); {
	case err != nil:
		return err
	case has == digest:
		open = program.Open
	}
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	return installFile(in, filepath.Join(dir, agentFile), digest)
}

func installFile(in io.Reader, to, digest string) error {
	switch found, err := fileDigest(to); {
	case err == nil && found == digest:
		return removeParts(to)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+partPattern)
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) // fails once it has its final name
	defer part.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(part, sum), in); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return fmt.Errorf("the executable has the digest %s, not %s", got, digest)
	}
	if err := errors.Join(part.Chmod(0o755), part.Sync(), part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), to); err != nil {
		// A concurrent call that was faster has removed the part.
		if found, readErr := fileDigest(to); readErr != nil || found != digest {
			return err
		}
	}
	return removeParts(to)
}

// partPattern is the end of the names of incomplete files.
const partPattern = ".part-*"

// removeParts removes what interrupted calls have left and syncs the directory.
func removeParts(to string) error {
	parts, err := filepath.Glob(to + partPattern)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
