package dockertest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Registry serves images by the registry API (v2) on this machine, with layers that
// it can send slowly.
type Registry struct {
	t    testing.TB
	addr string

	mu      sync.Mutex
	objects map[string]object // by the path of their request
	login   [2]string         // user and password; empty: none is needed
	seen    []string          // the Authorization headers of requests
	held    *hold             // nil: nothing is held back
}

type object struct {
	kind    string
	content []byte
	layer   *Layer
}

// head sets the headers of a response with the object.
func (o object) head(w http.ResponseWriter) {
	w.Header().Set("Content-Type", o.kind)
	w.Header().Set("Content-Length", fmt.Sprint(len(o.content)))
	w.Header().Set("Docker-Content-Digest", digestOf(o.content))
}

// Layer is a layer of an image, with one random file.
type Layer struct {
	Size int // of the file

	mu      sync.Mutex
	rate    int // bytes per second; 0: as fast as possible
	silent  bool
	sending int
}

// SetRate sets how many bytes per second the registry sends; 0: as many as possible.
func (l *Layer) SetRate(rate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate = rate
}

// SetSilent sets whether the registry accepts requests for the layer and does not respond.
func (l *Layer) SetSilent(silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = silent
}

// Sending returns how many responses with the layer have not ended.
func (l *Layer) Sending() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sending
}

// SetLogin makes the registry refuse requests without this login. It repeats what it was
// sent in its refusals.
func (r *Registry) SetLogin(user, password string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.login = [2]string{user, password}
}

// Hold makes the registry hold configurations and layers back until release is called. Then it
// sends them, or with missing reports from then on that it has none.
func (r *Registry) Hold(missing bool) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &hold{missing: missing, over: make(chan struct{})}
	r.held = h
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !missing {
			r.held = nil
		}
		close(h.over)
	}
}

// hold is content that is held back.
type hold struct {
	missing bool
	over    chan struct{} // closed at its end
}

// awaitRelease waits while content is held, and reports whether it is to be sent. A client waits
// longer for content of which it has the headers.
func (r *Registry) awaitRelease(o object, w http.ResponseWriter, req *http.Request) bool {
	r.mu.Lock()
	h := r.held
	r.mu.Unlock()
	if h == nil {
		return true
	}
	if !h.missing {
		o.head(w)
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
	}
	select {
	case <-h.over:
		if h.missing {
			http.NotFound(w, req)
		}
		return !h.missing
	case <-req.Context().Done():
		return false
	}
}

// Logins returns the Authorization headers that were sent to the registry.
func (r *Registry) Logins() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

// Layers returns n layers with a file of that size each.
func Layers(n, size, rate int) []*Layer {
	out := make([]*Layer, n)
	for i := range out {
		out[i] = &Layer{Size: size, rate: rate}
	}
	return out
}

// Sending returns how many of the layers are being sent.
func Sending(layers []*Layer) int {
	n := 0
	for _, l := range layers {
		n += min(l.Sending(), 1)
	}
	return n
}

// NewRegistry starts a registry that ends with the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Registry{t: t, addr: l.Addr().String(), objects: map[string]object{}}
	srv := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return r
}

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

type descriptor struct {
	MediaType string `json:"mediaType"`
	Size      int    `json:"size"`
	Digest    string `json:"digest"`
}

// Add adds an image and returns its reference.
func (r *Registry) Add(name string, layers []*Layer) string {
	r.t.Helper()
	var diffs []string
	var blobs []descriptor
	for _, l := range layers {
		content := l.tar(r.t)
		diffs = append(diffs, digestOf(content))
		blobs = append(blobs, r.blob(name, object{kind: layerType, content: r.pack(content), layer: l}))
	}
	config := r.json(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Cmd": []string{"/none"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	manifest := r.json(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": r.blob(name, object{kind: configType, content: config}), "layers": blobs,
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ref := range []string{"v1", digestOf(manifest)} {
		r.objects["/v2/"+name+"/manifests/"+ref] = object{kind: manifestType, content: manifest}
	}
	return r.addr + "/" + name + ":v1"
}

// AddSaved adds the image that `docker save` wrote, as a variant of its own, and returns
// its reference and its digest. An image that had the name keeps its digest alone.
func (r *Registry) AddSaved(name string, saved []byte, variant string) (ref, digest string) {
	r.t.Helper()
	files := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(saved)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err == nil {
			files[h.Name], err = io.ReadAll(tr)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
	var index []struct {
		Config string
		Layers []string
	}
	var config map[string]any
	if err := json.Unmarshal(files["manifest.json"], &index); err != nil || len(index) != 1 {
		r.t.Fatalf("the saved image has %d manifests (%v)", len(index), err)
	}
	if err := json.Unmarshal(files[index[0].Config], &config); err != nil {
		r.t.Fatal(err)
	}
	config["author"] = variant
	var blobs []descriptor
	for _, layer := range index[0].Layers {
		blobs = append(blobs, r.blob(name, object{kind: layerType, content: r.pack(files[layer])}))
	}
	manifest := r.json(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": r.blob(name, object{kind: configType, content: r.json(config)}), "layers": blobs,
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	digest = digestOf(manifest)
	for _, at := range []string{"v1", digest} {
		r.objects["/v2/"+name+"/manifests/"+at] = object{kind: manifestType, content: manifest}
	}
	return r.addr + "/" + name + ":v1", digest
}

// pack returns a layer as the registry has it. With the race detector, compression takes half a
// minute for an image.
func (r *Registry) pack(layer []byte) []byte {
	r.t.Helper()
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.NoCompression)
	if err == nil {
		_, err = z.Write(layer)
	}
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return packed.Bytes()
}

// Host returns the registry's host and port.
func (r *Registry) Host() string { return r.addr }

func (r *Registry) json(v any) []byte {
	r.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func (r *Registry) blob(name string, o object) descriptor {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := digestOf(o.content)
	r.objects["/v2/"+name+"/blobs/"+d] = o
	return descriptor{MediaType: o.kind, Size: len(o.content), Digest: d}
}

func digestOf(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func (l *Layer) tar(t testing.TB) []byte {
	t.Helper()
	content := make([]byte, l.Size)
	_, _ = rand.Read(content)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Name: "file-" + digestOf(content)[7:19], Size: int64(l.Size), Mode: 0o644})
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// ServeHTTP serves the registry API.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	if !r.admits(req) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required, not %s"}]}`, req.Header.Get("Authorization"))
		return
	}
	if strings.TrimSuffix(req.URL.Path, "/") == "/v2" {
		w.WriteHeader(http.StatusOK)
		return
	}
	r.mu.Lock()
	o, ok := r.objects[req.URL.Path]
	r.mu.Unlock()
	if !ok {
		http.NotFound(w, req)
		return
	}
	if o.kind != manifestType && req.Method != http.MethodHead && !r.awaitRelease(o, w, req) {
		return
	}
	o.head(w)
	if req.Method == http.MethodHead {
		return
	}
	if o.layer == nil {
		_, _ = w.Write(o.content)
		return
	}
	o.layer.send(w, req, o.content)
}

func (r *Registry) admits(req *http.Request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent := req.Header.Get("Authorization"); sent != "" {
		r.seen = append(r.seen, sent)
	}
	user, password, _ := req.BasicAuth()
	return r.login == [2]string{user, password}
}

func (l *Layer) send(w http.ResponseWriter, req *http.Request, content []byte) {
	count := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sending += n
	}
	count(1)
	defer count(-1)
	for len(content) > 0 {
		l.mu.Lock()
		rate, silent := l.rate, l.silent
		l.mu.Unlock()
		n := len(content)
		if !silent {
			if rate > 0 {
				n = min(n, max(1, rate/20))
			}
			if _, err := w.Write(content[:n]); err != nil {
				return
			}
			content = content[n:]
			_ = http.NewResponseController(w).Flush()
		}
		if rate > 0 || silent {
			select {
			case <-req.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}
