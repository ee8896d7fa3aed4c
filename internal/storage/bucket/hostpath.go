package bucket

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// HostPath returns the path that Docker has for a folder of this process. If
// the server runs in a container, hostDataDir is the path of its data folder on
// Docker's host, and folder must be in the data folder; otherwise hostDataDir
// is empty. The error says what to do.
func HostPath(folder, dataDir, hostDataDir string) (string, error) {
	folder = filepath.Clean(folder)
	if hostDataDir == "" {
		return folder, nil
	}
	rel, inside := within(filepath.Clean(dataDir), folder)
	if inside {
		// A link out of the data folder has another target on the host.
		_, inside = within(resolve(filepath.Clean(dataDir)), resolve(folder))
	}
	if !inside {
		return "", fmt.Errorf("the folder %s is not in the data folder %s, and with CODEHUB_HOST_DATA_DIR Docker's host has only the data folder: put the archives into %s, or on S3",
			folder, dataDir, filepath.Join(dataDir, "archives"))
	}
	return filepath.Join(hostDataDir, rel), nil
}

func within(dir, path string) (string, bool) {
	rel, err := filepath.Rel(dir, path)
	return rel, err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// resolve follows the links in the existing part of a path.
func resolve(path string) string {
	for range 40 { // the kernel's limit
		real, err := filepath.EvalSymlinks(path)
		if err == nil {
			return real
		}
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = filepath.Clean(to)
	}
	dir := filepath.Dir(path)
	if dir == path {
		return path
	}
	return filepath.Join(resolve(dir), filepath.Base(path))
}
