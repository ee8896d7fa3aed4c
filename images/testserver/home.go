package main

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// openHome opens the home as a root that no path can leave, and gives ?path=
// relative to it; an absolute path must lie under the home.
func (s *server) openHome(w http.ResponseWriter, r *http.Request) (*os.Root, string, bool) {
	name := r.URL.Query().Get("path")
	if rest, ok := strings.CutPrefix(name, s.home+"/"); ok {
		name = rest
	}
	if name == "" || name == s.home {
		name = "."
	}
	root, err := os.OpenRoot(s.home)
	if err != nil {
		fileError(w, err)
		return nil, "", false
	}
	return root, name, true
}

// readFile sends a file, as ?type= says (application/octet-stream).
func (s *server) readFile(w http.ResponseWriter, r *http.Request) {
	root, name, ok := s.openHome(w, r)
	if !ok {
		return
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		fileError(w, err)
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		http.Error(w, name+": not a file", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", cmp.Or(r.URL.Query().Get("type"), "application/octet-stream"))
	_, _ = io.Copy(w, f) // a short answer shows a failure that comes after the header
}

// writeFile stores the body, making the folders above it. ?mode= is octal (0644).
func (s *server) writeFile(w http.ResponseWriter, r *http.Request) {
	mode := fs.FileMode(0o644)
	if v := r.URL.Query().Get("mode"); v != "" {
		n, err := strconv.ParseUint(v, 8, 9)
		if err != nil {
			http.Error(w, "mode: "+err.Error(), http.StatusBadRequest)
			return
		}
		mode = fs.FileMode(n)
	}
	root, name, ok := s.openHome(w, r)
	if !ok {
		return
	}
	defer root.Close()
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		fileError(w, err)
		return
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		fileError(w, err)
		return
	}
	n, err := io.Copy(f, r.Body)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		fileError(w, err)
		return
	}
	writeJSON(w, map[string]any{"path": name, "bytes": n})
}

func (s *server) deleteFile(w http.ResponseWriter, r *http.Request) {
	root, name, ok := s.openHome(w, r)
	if !ok {
		return
	}
	defer root.Close()
	if err := root.Remove(name); err != nil {
		fileError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// stat reports owner, mode, kind and size of a path, and whom the server runs as.
func (s *server) stat(w http.ResponseWriter, r *http.Request) {
	root, name, ok := s.openHome(w, r)
	if !ok {
		return
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err != nil {
		fileError(w, err)
		return
	}
	answer := map[string]any{
		"path": name, "mode": info.Mode().String(), "dir": info.IsDir(), "size": info.Size(),
		"running_as": os.Getuid(),
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		answer["uid"], answer["gid"] = owner.Uid, owner.Gid
	}
	writeJSON(w, answer)
}

func fileError(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	switch {
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.Is(err, fs.ErrPermission):
		status = http.StatusForbidden
	case errors.Is(err, syscall.ENOSPC):
		status = http.StatusInsufficientStorage
	}
	http.Error(w, err.Error(), status)
}
