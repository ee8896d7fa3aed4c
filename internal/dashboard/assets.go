package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"

	"codehub/internal/accesslog"
)

//go:embed static templates
var files embed.FS

// assets serves the static files under addresses that change with their
// content, so that browsers may keep them for good.
type assets struct {
	root    fs.FS
	version map[string]string
}

func newAssets() *assets {
	root, err := fs.Sub(files, "static")
	if err != nil {
		panic(err)
	}
	a := &assets{root: root, version: map[string]string{}}
	err = fs.WalkDir(root, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		a.version[path] = hex.EncodeToString(sum[:6])
		return nil
	})
	if err != nil {
		panic(err)
	}
	return a
}

// url returns the address of a static file. A file that is not there panics:
// only templates call it, and they are parsed and run by the tests.
func (a *assets) url(path string) string {
	v, ok := a.version[path]
	if !ok {
		panic("no static file " + path)
	}
	return "/assets/" + path + "?v=" + v
}

func (a *assets) serve(w http.ResponseWriter, r *http.Request) {
	accesslog.Quiet(r.Context())
	path := r.PathValue("path")
	v, ok := a.version[path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", policy)
	h.Set("ETag", `"`+v+`"`)
	h.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == v {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, a.root, path)
}
