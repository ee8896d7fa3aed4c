package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"codehub/internal/web/accesslog"
)

//go:embed static templates
var files embed.FS

// assets serves the static files under addresses that contain a hash of their content, so
// browsers can cache them without revalidation.
type assets struct {
	files map[string]asset
}

// asset is one static file. gzip is nil if compression does not make it smaller.
type asset struct {
	hash        string
	plain, gzip []byte
}

// embeddedAssets compresses the files once in a process: they are part of the program.
var embeddedAssets = sync.OnceValue(newAssets)

func newAssets() *assets {
	root, err := fs.Sub(files, "static")
	if err != nil {
		panic(err)
	}
	a := &assets{files: map[string]asset{}}
	err = fs.WalkDir(root, ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		a.files[path] = asset{hash: hex.EncodeToString(sum[:6]), plain: b, gzip: compressed(b)}
		return nil
	})
	if err != nil {
		panic(err)
	}
	return a
}

func compressed(b []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic(err)
	}
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	if out.Len() >= len(b) {
		return nil
	}
	return out.Bytes()
}

// url returns the address of a static file. It panics if there is none: only templates call it,
// and tests render them all.
func (a *assets) url(path string) string {
	f, ok := a.files[path]
	if !ok {
		panic("no static file " + path)
	}
	return "/assets/" + path + "?v=" + f.hash
}

func (a *assets) serve(w http.ResponseWriter, r *http.Request) {
	accesslog.Quiet(r.Context())
	path := r.PathValue("path")
	f, ok := a.files[path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", policyOf(""))
	h.Set("Vary", "Accept-Encoding")
	h.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == f.hash {
		h.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	content, etag := f.plain, f.hash
	if f.gzip != nil && acceptsGzip(r.Header.Values("Accept-Encoding")) {
		content, etag = f.gzip, f.hash+"-gzip"
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", `"`+etag+`"`)
	http.ServeContent(w, r, path, time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reports whether the values of Accept-Encoding allow gzip.
func acceptsGzip(values []string) bool {
	any := false
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, params, _ := strings.Cut(part, ";")
		quality := 1.0
		if q, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(params)), "q="); ok {
			var err error
			if quality, err = strconv.ParseFloat(q, 64); err != nil {
				quality = 0
			}
		}
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			return quality > 0
		case "*":
			any = quality > 0
		}
	}
	return any
}
