package embedded

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	socketName = ".s.PGSQL." + port
	// maxSocketPath is the longest path in a sockaddr_un with its final NUL.
	maxSocketPath = 107
)

// socketFolder returns a path of the socket's folder that is short enough for a
// connection. postgres itself binds to a relative path. For a long data folder it is a
// link in a private folder of the server's user, with a name derived from the path; a
// link that is missing, for example after a reboot, is created again.
func (l *layout) socketFolder() (string, error) {
	long := l.path(runName)
	if len(long)+1+len(socketName) <= maxSocketPath {
		return long, nil
	}
	uid := l.acc.server.uid
	bases := []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"}
	if uid == 0 {
		bases = []string{"/run", os.TempDir(), "/tmp"}
	}
	var failed []error
	for _, base := range bases {
		folder := filepath.Join(base, fmt.Sprintf("codehub-%d", uid))
		link := filepath.Join(folder, fmt.Sprintf("%x", sha256.Sum256([]byte(long)))[:12])
		if base == "" || len(link)+1+len(socketName) > maxSocketPath {
			continue
		}
		err := privateFolder(folder, uid)
		if err == nil {
			err = ensureLink(long, link)
		}
		if err == nil {
			return link, nil
		}
		failed = append(failed, err)
	}
	return "", fmt.Errorf("the path of the database's socket, %s/%s, is longer than the %d bytes a socket may have, "+
		"and no shorter one could be created: %w", long, socketName, maxSocketPath, errors.Join(failed...))
}

// privateFolder creates the folder, or checks the owner and mode of an existing one:
// in /tmp any user could have created it.
func privateFolder(path string, uid int) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || fi.Mode().Perm() != 0o700 || !ok || int(st.Uid) != uid {
		return fmt.Errorf("%s is not a folder of uid %d with mode 0700", path, uid)
	}
	return nil
}

// ensureLink makes sure that link points to target.
func ensureLink(target, link string) error {
	if have, err := os.Readlink(link); err == nil && have == target {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", link, os.Getpid())
	_ = os.Remove(temp)
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, link)
}
