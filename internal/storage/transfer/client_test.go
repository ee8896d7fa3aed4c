package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"codehub/internal/storage/store"
	"codehub/internal/storage/transfer"
	"codehub/internal/testing/s3test"
)

func TestMain(m *testing.M) {
	os.Setenv("AWS_ACCESS_KEY_ID", s3test.AccessKey)
	os.Setenv("AWS_SECRET_ACCESS_KEY", s3test.SecretKey)
	os.Exit(m.Run())
}

// s3Store is a store in a real S3 server.
func s3Store(t *testing.T, server *s3test.Server, bucketAndPrefix string) interface {
	store.Store
	store.Presigner
} {
	t.Helper()
	s, err := store.Open(server.URL(bucketAndPrefix))
	check(t, err)
	return s.(*store.S3)
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

func read(t *testing.T, s store.Store, key string) []byte {
	t.Helper()
	r, err := s.Get(t.Context(), key, 0)
	check(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	check(t, err)
	return b
}

func put(t *testing.T, s store.Store, key string, content []byte) {
	t.Helper()
	_, err := s.Put(t.Context(), key, bytes.NewReader(content))
	check(t, err)
}

// faulty is a proxy in front of a server that injects faults.
type faulty struct {
	proxy  *httputil.ReverseProxy
	inject func(w http.ResponseWriter, r *http.Request) bool
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !f.inject(w, r) {
		f.proxy.ServeHTTP(w, r)
	}
}

// through replaces the address in a signed URL by that of a proxy, which forwards the host that
// the signature covers.
func through(t *testing.T, server *s3test.Server, inject func(http.ResponseWriter, *http.Request) bool) (*transfer.Client, *faulty) {
	t.Helper()
	target, err := url.Parse(server.Endpoint)
	check(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = target.Host }}
	f := &faulty{proxy: proxy, inject: inject}
	return transfer.New(transfer.Options{Transport: inProcess{f}, Backoff: 10 * time.Millisecond, Stall: 300 * time.Millisecond}), f
}

// inProcess has a handler answer requests, with connections that can break.
type inProcess struct{ handler http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	pr, pw := io.Pipe()
	w := &pipeWriter{header: http.Header{}, body: pw, started: make(chan struct{})}
	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				w.fail()
				pw.CloseWithError(io.ErrUnexpectedEOF)
				return
			}
			w.WriteHeader(http.StatusOK)
			pw.CloseWithError(context.Cause(r.Context())) // a request that was cancelled has no end
		}()
		p.handler.ServeHTTP(w, r)
	}()
	context.AfterFunc(r.Context(), func() { pw.CloseWithError(context.Cause(r.Context())) })
	select {
	case <-w.started:
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	if w.status == 0 {
		return nil, syscall.ECONNREFUSED
	}
	res := &http.Response{StatusCode: w.status, Header: w.header, Body: pr, Request: r, ContentLength: -1}
	if r.Method == http.MethodHead {
		_, _ = fmt.Sscan(w.header.Get("Content-Length"), &res.ContentLength)
	}
	return res, nil
}

type pipeWriter struct {
	header  http.Header
	status  int
	body    *io.PipeWriter
	started chan struct{}
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
		close(w.started)
	}
}

// fail closes the connection if there was no response.
func (w *pipeWriter) fail() {
	if w.status == 0 {
		close(w.started)
	}
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func untouched(http.ResponseWriter, *http.Request) bool { return false }

// A storage job's way, without any credentials.
func TestTransfer(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	s := s3Store(t, server, "bucket/prefix")
	job := transfer.New(transfer.Options{})
	content := randomBytes(2*transfer.MinPart + 12345)
	ticket, err := s.PresignUpload(t.Context(), "ws/op/home.tar.zst", int64(len(content)), time.Hour)
	check(t, err)
	if len(ticket.Parts) != 3 {
		t.Errorf("%d parts", len(ticket.Parts))
	}
	n, err := job.Upload(t.Context(), ticket, io.MultiReader(bytes.NewReader(content)))
	check(t, err)
	if n != int64(len(content)) || !bytes.Equal(read(t, s, "ws/op/home.tar.zst"), content) {
		t.Errorf("different content was stored (%d bytes)", n)
	}
	small, err := s.PresignPut(t.Context(), "ws/op/home.tar.zst.meta", time.Hour)
	check(t, err)
	check(t, job.Put(t.Context(), small, []byte("meta")))
	if got := read(t, s, "ws/op/home.tar.zst.meta"); string(got) != "meta" {
		t.Errorf("meta is %q", got)
	}
	get, err := s.PresignGet(t.Context(), "ws/op/home.tar.zst", time.Hour)
	check(t, err)
	for _, offset := range []int{0, 1 << 20, len(content)} {
		r, err := job.Get(t.Context(), get, int64(offset))
		check(t, err)
		got, err := io.ReadAll(r)
		check(t, err)
		check(t, r.Close())
		if !bytes.Equal(got, content[offset:]) {
			t.Errorf("the bytes from %d differ", offset)
		}
	}
	missing, err := s.PresignGet(t.Context(), "ws/none", time.Hour)
	check(t, err)
	if _, err := job.Get(t.Context(), missing, 0); !errors.Is(err, transfer.ErrNotFound) {
		t.Errorf("Get of a missing object: %v", err)
	}
	empty, err := s.PresignUpload(t.Context(), "ws/empty", 1, time.Hour)
	check(t, err)
	if n, err := job.Upload(t.Context(), empty, strings.NewReader("")); n != 0 || err != nil {
		t.Errorf("Upload of an empty object: %d, %v", n, err)
	}
	tight, err := s.PresignUpload(t.Context(), "ws/tight", transfer.MinPart, time.Hour)
	check(t, err)
	if _, err := job.Upload(t.Context(), tight, bytes.NewReader(content)); !errors.Is(err, transfer.ErrTooLarge) || errors.Is(err, transfer.ErrUnavailable) {
		t.Errorf("Upload of more than the ticket is for: %v", err)
	}
	if n, err := s.AbortIncomplete(t.Context(), "", 0, nil); n != 0 || err != nil {
		t.Errorf("%d uploads left behind, %v", n, err)
	}
	// A URL works for its object and its method only.
	other := strings.Replace(get, "ws/op/home", "ws/other/home", 1)
	if _, err := job.Get(t.Context(), other, 0); !errors.Is(err, transfer.ErrUnavailable) {
		t.Errorf("a URL worked for another object: %v", err)
	}
	if err := job.Put(t.Context(), get, []byte("x")); !errors.Is(err, transfer.ErrUnavailable) {
		t.Errorf("a URL for reading worked for writing: %v", err)
	} else if strings.Contains(err.Error(), "Signature=") {
		t.Errorf("the error reveals the signature: %v", err)
	}
}

// A transient fault of any kind, once per request, causes no error. A lasting one does, and
// leaves nothing behind.
func TestTransferFaults(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	s := s3Store(t, server, "bucket/"+t.Name())
	content := randomBytes(transfer.MinPart + 1000)
	faults := map[string]func(w http.ResponseWriter, r *http.Request){
		"500":     func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) },
		"503":     func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
		"refused": func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"200 with an error in it": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				io.WriteString(w, `<?xml version="1.0"?><Error><Code>InternalError</Code></Error>`)
				return
			}
			w.WriteHeader(500)
		},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "ws/" + strings.ReplaceAll(name, " ", "-")
			seen := map[string]int{}
			var lock = make(chan struct{}, 1)
			job, _ := through(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				lock <- struct{}{}
				seen[r.Method+r.URL.Path+r.URL.Query().Get("partNumber")]++
				first := seen[r.Method+r.URL.Path+r.URL.Query().Get("partNumber")] == 1
				<-lock
				if first {
					fault(w, r)
				}
				return first
			})
			ticket, err := s.PresignUpload(t.Context(), key, 100<<20, time.Hour)
			check(t, err)
			_, err = job.Upload(t.Context(), ticket, bytes.NewReader(content))
			check(t, err)
			get, err := s.PresignGet(t.Context(), key, time.Hour)
			check(t, err)
			r, err := job.Get(t.Context(), get, 0)
			check(t, err)
			got, err := io.ReadAll(r)
			check(t, err)
			if !bytes.Equal(got, content) {
				t.Error("different bytes were read back")
			}

			down, _ := through(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodDelete {
					return false
				}
				fault(w, r)
				return true
			})
			ticket, err = s.PresignUpload(t.Context(), key+"-down", 100<<20, time.Hour)
			check(t, err)
			if _, err = down.Upload(t.Context(), ticket, bytes.NewReader(content)); !errors.Is(err, transfer.ErrUnavailable) {
				t.Errorf("Upload: %v", err)
			}
			if _, err = down.Get(t.Context(), get, 0); !errors.Is(err, transfer.ErrUnavailable) {
				t.Errorf("Get: %v", err)
			}
			if _, err := s.Stat(t.Context(), key+"-down"); !errors.Is(err, transfer.ErrNotFound) {
				t.Errorf("a partial object exists: %v", err)
			}
		})
	}
}

// A bucket that fails to remove the parts of an interrupted upload is asked again.
func TestAbortIsRetried(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	s := s3Store(t, server, "bucket/"+t.Name())
	var deletes atomic.Int32
	job, _ := through(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodDelete || deletes.Add(1) > 2 {
			return false
		}
		w.WriteHeader(http.StatusInternalServerError)
		return true
	})
	for name, cut := range map[string]func(cancel func()) error{
		"reader failed": func(func()) error { return errors.New("home changed") },
		"cancelled":     func(cancel func()) error { cancel(); return nil },
	} {
		deletes.Store(0)
		ticket, err := s.PresignUpload(t.Context(), "ws/cut", transfer.MinPart, time.Hour)
		check(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		content := bytes.NewReader(randomBytes(transfer.MinPart))
		if _, err := job.Upload(ctx, ticket, io.MultiReader(content, readerFunc(func(p []byte) (int, error) {
			return len(p), cut(cancel)
		}))); err == nil {
			t.Errorf("%s: the upload succeeded", name)
		}
		cancel()
		if n, err := s.AbortIncomplete(t.Context(), "", 0, nil); n != 0 || err != nil {
			t.Errorf("%s: %d uploads were left behind, %v", name, n, err)
		}
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// The answer to the completion gets lost: it was done nonetheless.
func TestLostCompletionResponse(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	s := s3Store(t, server, "bucket/"+t.Name())
	var lost atomic.Bool
	job, f := through(t, server, untouched)
	f.inject = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPost || lost.Swap(true) {
			return false
		}
		sink := &pipeWriter{header: http.Header{}, started: make(chan struct{})}
		pr, pw := io.Pipe()
		sink.body = pw
		go io.Copy(io.Discard, pr)
		f.proxy.ServeHTTP(sink, r)
		panic(http.ErrAbortHandler)
	}
	content := randomBytes(transfer.MinPart * 2)
	ticket, err := s.PresignUpload(t.Context(), "ws/op", 100<<20, time.Hour)
	check(t, err)
	_, err = job.Upload(t.Context(), ticket, bytes.NewReader(content))
	check(t, err)
	if !bytes.Equal(read(t, s, "ws/op"), content) {
		t.Error("different content is stored")
	}
}

// A download that breaks off, or stalls, every megabyte arrives whole.
func TestDownloadResumes(t *testing.T) {
	t.Parallel()
	server := s3test.Share(t, "bucket")
	s := s3Store(t, server, "bucket/"+t.Name())
	content := randomBytes(5 << 20)
	put(t, s, "ws/op", content)
	get, err := s.PresignGet(t.Context(), "ws/op", time.Hour)
	check(t, err)
	var connections atomic.Int64
	job, f := through(t, server, untouched)
	f.inject = func(w http.ResponseWriter, r *http.Request) bool {
		n := connections.Add(1)
		f.proxy.ServeHTTP(&limitedWriter{ResponseWriter: w, left: 1 << 20, stall: n%2 == 0, done: r.Context().Done()}, r)
		return true
	}
	r, err := job.Get(t.Context(), get, 100)
	check(t, err)
	got, err := io.ReadAll(r)
	check(t, err)
	check(t, r.Close())
	if !bytes.Equal(got, content[100:]) {
		t.Errorf("got %d different bytes", len(got))
	}
	if connections.Load() < 5 {
		t.Errorf("%d connections: no connection was broken", connections.Load())
	}

	// Another object in its place is not glued to the half of the first.
	r, err = job.Get(t.Context(), get, 0)
	check(t, err)
	_, err = io.CopyN(io.Discard, r, 1000)
	check(t, err)
	put(t, s, "ws/op", randomBytes(5<<20+1))
	if _, err = io.ReadAll(r); !errors.Is(err, transfer.ErrUnavailable) {
		t.Errorf("read on in another object: %v", err)
	}
	check(t, r.Close())
}

// limitedWriter breaks off, or stalls until the other side gives up.
type limitedWriter struct {
	http.ResponseWriter
	left  int
	stall bool
	done  <-chan struct{}
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		w.ResponseWriter.Write(p[:w.left])
		if w.stall {
			<-w.done
		}
		panic(http.ErrAbortHandler)
	}
	w.left -= len(p)
	return w.ResponseWriter.Write(p)
}
