package importm1

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
)

// homes is the folder of the first version's homes. It is only read.
type homes struct{ dir string }

// homeKey is the path of a workspace's home, below the folder of all homes.
func homeKey(owner, id string) string {
	return path.Join("users", owner, "workspaces", id, "home")
}

// check reports an error unless this is a folder of homes.
func (h homes) check() error {
	fi, err := os.Stat(h.dir)
	if err != nil {
		return fmt.Errorf("read the folder of the homes: %w", err)
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a folder", h.dir)
	}
	if fi, err = os.Lstat(filepath.Join(h.dir, "users")); err != nil || !fi.IsDir() {
		return fmt.Errorf("%s has no folder users: give the folder that was CODEHUB_HOME_STORE__WORKSPACE_BASE_DIR in the first version", h.dir)
	}
	return nil
}

// find returns the folder of a workspace's home, or "" if there is none. A home
// in another place, or one behind a link, is refused.
func (h homes) find(w SourceWorkspace) (string, error) {
	if w.HomeStoreKey != homeKey(w.OwnerID, w.ID) || !filepath.IsLocal(w.HomeStoreKey) {
		return "", fmt.Errorf("home_store_key %.200q is not the first version's (%.200q)", w.HomeStoreKey, homeKey(w.OwnerID, w.ID))
	}
	at := h.dir
	for _, part := range pathParts(w.HomeStoreKey) {
		at = filepath.Join(at, part)
		switch fi, err := os.Lstat(at); {
		case errors.Is(err, fs.ErrNotExist):
			return "", nil
		case err != nil:
			return "", fmt.Errorf("find the home: %w", err)
		case !fi.IsDir():
			return "", fmt.Errorf("%s is not a folder; links are not followed", at)
		}
	}
	return at, nil
}

func pathParts(p string) []string {
	var parts []string
	for p != "" && p != "." {
		dir, last := path.Split(p)
		parts = append(parts, last)
		p = path.Clean(dir)
	}
	slices.Reverse(parts)
	return parts
}

// unknown lists the homes without a workspace in the database.
func (h homes) unknown(list []SourceWorkspace) ([]string, error) {
	known := map[string]bool{}
	for _, w := range list {
		known[homeKey(w.OwnerID, w.ID)] = true
	}
	var unknown []string
	users, err := folders(h.dir, "users")
	if err != nil {
		return nil, err
	}
	for _, user := range users {
		workspaces, err := folders(h.dir, path.Join(user, "workspaces"))
		if err != nil {
			return nil, err
		}
		for _, w := range workspaces {
			home := path.Join(w, "home")
			if _, err := os.Lstat(filepath.Join(h.dir, home)); err == nil && !known[home] {
				unknown = append(unknown, filepath.Join(h.dir, home))
			}
		}
	}
	return unknown, nil
}

// folders lists the folders in a folder below dir, as paths relative to dir.
func folders(dir, below string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, below))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list homes: %w", err)
	}
	var list []string
	for _, e := range entries {
		if e.IsDir() {
			list = append(list, path.Join(below, e.Name()))
		}
	}
	return list, nil
}
