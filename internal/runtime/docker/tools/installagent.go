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

	"codehub/internal/runtime/agent/program"
)

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
