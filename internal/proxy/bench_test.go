package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"testing"
)

// BenchmarkRequests compares requests through the proxy with direct ones, and with
// the standard library's reverse proxy alone.
func BenchmarkRequests(b *testing.B) {
	w := newWorld(b)
	w.server.Config.ErrorLog = nil
	i := w.serve(wsA)
	body := strings.Repeat("x", 1024)
	i.handle = func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, body) }

	run := func(name, url, cookie string) {
		b.Run(name, func(b *testing.B) {
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			defer client.CloseIdleConnections()
			b.SetParallelism(16)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r, err := http.NewRequest(http.MethodGet, url, nil)
					if err != nil {
						b.Error(err)
						return
					}
					r.Header.Set("Cookie", cookie)
					res, err := client.Do(r)
					if err != nil {
						b.Error(err)
						return
					}
					n, err := io.Copy(io.Discard, res.Body)
					res.Body.Close()
					if err != nil || n != int64(len(body)) || res.StatusCode != http.StatusOK {
						b.Errorf("status %d, %d bytes: %v", res.StatusCode, n, err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
	run("direct", i.server.URL+"/x", "code-server-session="+i.secret)
	bare := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", i.addr()
			r.SetXForwarded()
		},
		FlushInterval: -1,
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	})
	defer bare.Close()
	run("bare", bare.URL+"/x", "code-server-session="+i.secret)
	run("proxy", w.server.URL+under(wsA)+"/x", sessionCookie+"=ann-1; theme=dark")

	reads, _ := w.store.counts()
	if reads > 2 || w.runtime.count() > 2 {
		b.Errorf("%d reads of the database and %d of the runtime per request", reads, w.runtime.count())
	}
}

// BenchmarkStream downloads 64 MiB through the proxy and directly.
func BenchmarkStream(b *testing.B) {
	w := newWorld(b)
	i := w.serve(wsA)
	const size = 64 << 20
	chunk := make([]byte, 64<<10)
	i.handle = func(rw http.ResponseWriter, _ *http.Request) {
		for range size / len(chunk) {
			if _, err := rw.Write(chunk); err != nil {
				return
			}
		}
	}
	run := func(name, url, cookie string) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				r, err := http.NewRequest(http.MethodGet, url, nil)
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Cookie", cookie)
				res, err := noRedirects.Do(r)
				if err != nil {
					b.Fatal(err)
				}
				n, err := io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if err != nil || n != size {
					b.Fatalf("%d bytes: %v", n, err)
				}
			}
		})
	}
	run("direct", i.server.URL+"/x", "code-server-session="+i.secret)
	run("proxy", w.server.URL+under(wsA)+"/x", sessionCookie+"=ann-1")
}
