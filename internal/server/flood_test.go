//go:build !race

// The race detector takes several times the memory.

package server

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// The flood of TestFloodOfStalledBodies, and by how much it may raise the peak of the server's
// memory: its connections, streams and bodies, and garbage that is not collected yet. The other
// client's logins are in the peak before the flood, too: each takes 64 MiB for its hash.
const (
	floodConnections = 24
	floodStreams     = 128
	floodMemory      = 100e6
)

// stalledRequest is a request without a session whose body stops one byte before its end.
type stalledRequest struct {
	method, path, typ string
	declared          bool
	size              int
}

// stalledRequests are sent in turn. Half of them have the largest body that is accepted.
func stalledRequests() []stalledRequest {
	const json, form, multipart = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
	const most, more = 16 << 10, 256 << 10
	return []stalledRequest{
		{"POST", "/api/v1/login", json, true, most}, {"POST", "/api/v1/login", json, true, more},
		{"POST", "/login", form, true, most}, {"POST", "/login", form, false, more},
		{"POST", "/api/v1/login/device", json, false, most}, {"POST", "/workspaces", form, true, more},
		{"POST", "/passkey", form, true, most}, {"GET", "/login", multipart, true, more},
	}
}

// body returns all of a request's body but its last byte.
func (s stalledRequest) body() []byte {
	begin := map[string]string{"application/json": `{"username":"`, "application/x-www-form-urlencoded": "username="}[s.typ]
	if begin == "" {
		begin = "--x\r\nContent-Disposition: form-data; name=\"with\"\r\n\r\n"
	}
	return append([]byte(begin), bytes.Repeat([]byte("x"), s.size-1-len(begin))...)
}

// Without an account, clients cannot make the server take much memory by bodies that never
// end, and others are served meanwhile: directly by HTTP/2, and by HTTP/1 as through a
// reverse proxy, whose connections belong to everybody.
func TestFloodOfStalledBodies(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/2", "HTTP/1"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			// What the server sets by itself with the chart's limit of 1 GiB.
			opts, transport := proc.Options{Env: []string{"CODEHUB_MEMORY_LIMIT=768m"}}, &http.Transport{}
			if protocol == "HTTP/2" {
				transport = selfSigned(t, &opts)
			}
			s := servingWith(t, "", opts)
			other := otherClient(t, s, transport)
			rest, before := resident(t, s, "VmRSS"), resident(t, s, "VmHWM")
			if protocol == "HTTP/2" {
				floodHTTP2(t, s, transport)
			} else {
				floodHTTP1(t, s)
			}
			other()
			if more := resident(t, s, "VmHWM") - before; more > floodMemory {
				t.Errorf("the server took %d MB more than its peak of %d MB, %d MB more than at rest", more/1e6, before/1e6, (more+before-rest)/1e6)
			} else {
				t.Logf("the server took %d MB more than its peak of %d MB, %d MB more than at rest", more/1e6, before/1e6, (more+before-rest)/1e6)
			}
		})
	}
}

// floodHTTP2 returns once every stream is stalled or answered. Most are answered: a
// connection without a login has few at a time.
func floodHTTP2(t *testing.T, s *proc.Server, transport *http.Transport) {
	t.Helper()
	var stalled, answered atomic.Int32
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	var ready sync.WaitGroup
	for range floodConnections {
		one := transport.Clone()
		t.Cleanup(one.CloseIdleConnections)
		ready.Go(func() {
			res, err := one.RoundTrip(requestTo(t, "GET", s.URL+"/healthz", nil))
			if err != nil || res.ProtoMajor != 2 {
				t.Errorf("%v, %v", res, err)
				return
			}
			res.Body.Close()
			for i := range floodStreams {
				request := stalledRequests()[i%len(stalledRequests())]
				body := io.MultiReader(bytes.NewReader(request.body()), stall{end, &stalled})
				r := requestTo(t, request.method, s.URL+request.path, io.NopCloser(body))
				r.Header.Set("Content-Type", request.typ)
				if r.ContentLength = -1; request.declared {
					r.ContentLength = int64(request.size)
				}
				go func() {
					res, err := one.RoundTrip(r)
					answered.Add(1)
					if err == nil {
						res.Body.Close()
					}
				}()
			}
		})
	}
	ready.Wait()
	const all = floodConnections * floodStreams
	harness.Eventually(t, "the server has got all streams", func() bool { return stalled.Load()+answered.Load() >= all })
	harness.Eventually(t, "most streams are answered", func() bool { return answered.Load() >= all*3/4 })
}

// stall is the end of a body that never comes.
type stall struct {
	end     chan struct{}
	stalled *atomic.Int32
}

func (s stall) Read([]byte) (int, error) {
	s.stalled.Add(1)
	<-s.end
	return 0, io.EOF
}

// floodHTTP1 returns once half of the requests are answered: a limited number of bodies is
// read at a time.
func floodHTTP1(t *testing.T, s *proc.Server) {
	t.Helper()
	var answered atomic.Int32
	for i := range floodConnections * floodStreams {
		request := stalledRequests()[i%len(stalledRequests())]
		length := "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n", request.size)
		if request.declared {
			length = fmt.Sprintf("Content-Length: %d\r\n\r\n", request.size)
		}
		c, err := net.Dial("tcp", address(s))
		try(t, err)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(harness.Patience))
		go func() {
			head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\n", request.method, request.path, strings.TrimPrefix(s.URL, "http://"), request.typ)
			_, _ = c.Write(append([]byte(head+length), request.body()...)) // it may be answered meanwhile
		}()
		go func() {
			_, _ = bufio.NewReader(c).Peek(1)
			answered.Add(1)
		}()
	}
	harness.Eventually(t, "half of the requests are answered", func() bool { return answered.Load() >= floodConnections*floodStreams/2 })
}

// otherClient returns a function by which another client logs in and gets pages. It has done
// so once.
func otherClient(t *testing.T, s *proc.Server, transport *http.Transport) func() {
	t.Helper()
	use := func() {
		t.Helper()
		jar, err := cookiejar.New(nil)
		try(t, err)
		own := transport.Clone()
		defer own.CloseIdleConnections()
		client := &http.Client{Transport: own, Jar: jar, Timeout: 20 * time.Second}
		page := func(res *http.Response, err error) string {
			t.Helper()
			try(t, err)
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			try(t, err)
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%s %s: %s", res.Request.Method, res.Request.URL, res.Status)
			}
			return string(text)
		}
		text := page(client.Get(s.URL + "/login"))
		for _, asset := range regexp.MustCompile(`/assets/[^"]+`).FindAllString(text, -1) {
			page(client.Get(s.URL + asset))
		}
		page(client.PostForm(s.URL+"/login", url.Values{"username": {"admin"}, "password": {proc.AdminPassword}}))
		if text = page(client.Get(s.URL + "/settings/account")); !strings.Contains(text, "/logout") {
			t.Error("the other client is not logged in")
		}
	}
	use()
	return use
}

// resident returns a size of the server's resident memory: VmRSS, or its peak VmHWM.
func resident(t *testing.T, s *proc.Server, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Pid()))
	try(t, err)
	m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s of the server", field)
	}
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	try(t, err)
	return kib << 10
}

func requestTo(t *testing.T, method, address string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, body)
	try(t, err)
	return r
}

// selfSigned makes a server serve https, and returns a transport that trusts it.
func selfSigned(t *testing.T, opts *proc.Options) *http.Transport {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	try(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost", "*.localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	try(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	try(t, err)
	cert, roots, dir := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), x509.NewCertPool(), t.TempDir()
	roots.AppendCertsFromPEM(cert)
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	try(t, os.WriteFile(certFile, cert, 0o600))
	try(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	opts.Env = append(opts.Env, "CODEHUB_TLS_CERT="+certFile, "CODEHUB_TLS_KEY="+keyFile)
	opts.Listen, err = proc.FreeAddress()
	try(t, err)
	opts.URL = "https://localhost:" + opts.Listen[strings.LastIndex(opts.Listen, ":")+1:]
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}
	opts.Client = &http.Client{Transport: transport}
	return transport
}
