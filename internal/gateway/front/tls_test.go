package front_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"codehub/internal/base/health"
	"codehub/internal/base/setting"
	"codehub/internal/gateway/front"
	"codehub/internal/testing/harness"
)

// authority issues certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  crypto.Signer
	last atomic.Int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// issue returns a certificate with its chain, and its key, in PEM.
func (a *authority) issue(from, until time.Duration, names ...string) (chain, key []byte) {
	a.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(100 + a.last.Add(1)), DNSNames: names, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(until)}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	return append(block("CERTIFICATE", der), block("CERTIFICATE", a.cert.Raw)...), block("PRIVATE KEY", encoded)
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func write(t testing.TB, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// served is a front with the handler seen.
type served struct {
	*front.Front
	log        harness.Log
	conditions health.Monitor
	stop       func()
}

// serve opens a front with these settings. It ends with the test.
func serve(t *testing.T, s front.Settings) (*served, error) {
	t.Helper()
	return serveNames(t, s, "code.example.com", "*.ws.example.com")
}

func serveNames(t *testing.T, s front.Settings, names ...string) (*served, error) {
	t.Helper()
	if s.MinVersion == "" {
		s.MinVersion = "1.2"
	}
	s.ReloadInterval = 20 * time.Millisecond
	if err := s.Resolve(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := &served{}
	out.Front, err = front.Open(front.Config{
		Settings: s, Names: names, Log: out.log.Logger(), Conditions: &out.conditions,
		Secure: func(host string) (string, bool) {
			name := (&url.URL{Host: host}).Hostname()
			return "https://" + name + ":8443", own(name)
		},
	}, l)
	if err != nil {
		l.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := out.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	srv := &http.Server{Handler: s.Proxies.Handler(own, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto+" ")
		seen(w, r)
	})), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	wg.Go(func() { _ = srv.Serve(out.Listener) })
	out.stop = sync.OnceFunc(func() {
		cancel()
		srv.Close()
		out.Close()
		wg.Wait()
	})
	t.Cleanup(out.stop)
	return out, nil
}

// get requests a page of a host on a new connection.
func (s *served) get(t *testing.T, host string, config *tls.Config, http2 bool) (string, *tls.ConnectionState, error) {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig: config.Clone(), ForceAttemptHTTP2: http2, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, s.Listener.Addr().String())
		},
	}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get("https://" + host + "/")
	if err != nil {
		return "", nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return string(body), res.TLS, err
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	chain, key := a.issue(-time.Hour, time.Hour, "code.example.com", "*.ws.example.com")
	cert, keyFile := write(t, filepath.Join(dir, "tls.crt"), chain), write(t, filepath.Join(dir, "tls.key"), key)
	s, err := serve(t, front.Settings{Cert: cert, Key: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	for host, http2 := range map[string]bool{"code.example.com": true, "a.ws.example.com": false} {
		body, state, err := s.get(t, host, &tls.Config{RootCAs: a.pool()}, http2)
		proto := map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"}[http2]
		if err != nil || body != proto+" 127.0.0.1 https "+host {
			t.Errorf("%q, %v", body, err)
		} else if state.Version != tls.VersionTLS13 {
			t.Errorf("TLS version %x", state.Version)
		}
	}
	if _, _, err := s.get(t, "code.example.com", &tls.Config{RootCAs: a.pool(), MaxVersion: tls.VersionTLS12}, true); err != nil {
		t.Errorf("TLS 1.2: %v", err)
	}
	if _, _, err := s.get(t, "code.example.com", &tls.Config{RootCAs: a.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, true); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	if log := s.log.String(); strings.Contains(log, "WARN") {
		t.Errorf("warnings: %s", log)
	}
	s, err = serve(t, front.Settings{Cert: cert, Key: keyFile, MinVersion: "1.3"})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.get(t, "code.example.com", &tls.Config{RootCAs: a.pool(), MaxVersion: tls.VersionTLS12}, true); err == nil {
		t.Error("TLS 1.2 is accepted below the lowest version")
	}
}

// Invalid files are an error at the start, in one line.
func TestCertificateProblems(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	chain, key := a.issue(-time.Hour, time.Hour, "code.example.com")
	_, otherKey := a.issue(-time.Hour, time.Hour, "code.example.com")
	leaf, root := pem.Decode(chain)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name          string
		cert, key     []byte // nil: no file
		setting, says string
	}{
		{"no certificate file", nil, key, "CODEHUB_TLS_CERT", "no such file"},
		{"no key file", chain, nil, "CODEHUB_TLS_KEY", "no such file"},
		{"empty certificate", []byte{}, key, "CODEHUB_TLS_CERT", "no certificate in PEM"},
		{"certificate in DER", leaf.Bytes, key, "CODEHUB_TLS_CERT", "no certificate in PEM"},
		{"damaged certificate", block("CERTIFICATE", leaf.Bytes[:40]), key, "CODEHUB_TLS_CERT", "damaged certificate"},
		{"files exchanged", key, chain, "CODEHUB_TLS_CERT", "a private key and no certificate"},
		{"certificate twice", chain, chain, "CODEHUB_TLS_KEY", "a certificate and no private key"},
		{"empty key", chain, []byte{}, "CODEHUB_TLS_KEY", "no private key in PEM"},
		{"damaged key", chain, block("PRIVATE KEY", []byte("x")), "CODEHUB_TLS_KEY", "no key that can be used"},
		{"key with a password", chain, block("ENCRYPTED PRIVATE KEY", []byte("x")), "CODEHUB_TLS_KEY", "a key with a password"},
		{"old key with a password", chain, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Headers: map[string]string{"Proc-Type": "4,ENCRYPTED", "DEK-Info": "AES-256-CBC,00"}, Bytes: []byte("x")}), "CODEHUB_TLS_KEY", "a key with a password"},
		{"another key", chain, otherKey, "CODEHUB_TLS_KEY", "is not that of the certificate"},
		{"a key of another kind", chain, block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)), "CODEHUB_TLS_KEY", "is not that of the certificate"},
		{"authority first", append(append([]byte{}, root...), block("CERTIFICATE", leaf.Bytes)...), key, "CODEHUB_TLS_CERT", "begins with another certificate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := front.Settings{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
			if tc.cert != nil {
				write(t, s.Cert, tc.cert)
			}
			if tc.key != nil {
				write(t, s.Key, tc.key)
			}
			_, err := serve(t, s)
			var p *setting.Problem
			if !errors.As(err, &p) || p.Setting != tc.setting || !strings.Contains(p.Why, tc.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s: … %s …", err, tc.setting, tc.says)
			}
		})
	}
}

// A certificate that browsers refuse is a warning: the administrator may be about to
// replace it, and the server is reachable by other means.
func TestCertificateWarnings(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for _, tc := range []struct {
		name        string
		from, until time.Duration
		names       []string
		says        string
	}{
		{"expired", -2 * time.Hour, -time.Hour, []string{"code.example.com", "*.ws.example.com"}, "it expired on "},
		{"not yet valid", time.Hour, 2 * time.Hour, []string{"code.example.com", "*.ws.example.com"}, "it is not valid before "},
		{"another host", -time.Hour, time.Hour, []string{"www.example.com", "*.ws.example.com"}, "name=code.example.com"},
		{"no wildcard", -time.Hour, time.Hour, []string{"code.example.com", "ws.example.com", "a.ws.example.com"}, "name=*.ws.example.com"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			chain, key := a.issue(tc.from, tc.until, tc.names...)
			s, err := serve(t, front.Settings{Cert: write(t, filepath.Join(dir, "tls.crt"), chain), Key: write(t, filepath.Join(dir, "tls.key"), key)})
			if err != nil {
				t.Fatal(err)
			}
			if log := s.log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, tc.says) {
				t.Errorf("log: %s", log)
			}
		})
	}
}

// The files are read again when they change: in place, or as with Kubernetes, where a link
// leads to another folder. Unusable files change nothing.
func TestCertificateReload(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	dir := t.TempDir()
	generation := 0
	// swap replaces the target of the link atomically.
	swap := func(chain, key []byte) {
		t.Helper()
		generation++
		folder := fmt.Sprintf("..%d", generation)
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, folder, "tls.crt"), chain)
		write(t, filepath.Join(dir, folder, "tls.key"), key)
		if err := os.Symlink(folder, filepath.Join(dir, "..new")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"code.example.com", "*.ws.example.com"}
	swap(a.issue(-time.Hour, time.Hour, names...))
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err := serve(t, front.Settings{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")})
	if err != nil {
		t.Fatal(err)
	}
	serial := func() int64 {
		_, state, err := s.get(t, "code.example.com", &tls.Config{RootCAs: a.pool()}, true)
		if err != nil {
			t.Fatal(err)
		}
		return state.PeerCertificates[0].SerialNumber.Int64() - 100
	}
	failing := func() string {
		for _, state := range s.conditions.States() {
			if state.Name == "certificate" {
				return state.Error
			}
		}
		return ""
	}
	if got := serial(); got != 1 {
		t.Fatalf("serves certificate %d", got)
	}
	swap(a.issue(-time.Hour, time.Hour, names...))
	harness.Eventually(t, "the second certificate is served", func() bool { return serial() == 2 })

	// Another program replaces the files one after the other.
	chain, key := a.issue(-time.Hour, time.Hour, names...)
	write(t, filepath.Join(dir, "tls.crt"), chain)
	harness.Eventually(t, "the mismatch is a failing condition", func() bool { return strings.Contains(failing(), "is not that of the certificate") })
	if got := serial(); got != 2 {
		t.Errorf("serves certificate %d while the files do not fit", got)
	}
	write(t, filepath.Join(dir, "tls.key"), key)
	harness.Eventually(t, "the third certificate is served", func() bool { return serial() == 3 && failing() == "" })

	if err := os.Remove(filepath.Join(dir, "tls.crt")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the missing file is a failing condition", func() bool { return strings.Contains(failing(), "no such file") })
	if got := serial(); got != 3 {
		t.Errorf("serves certificate %d without a file", got)
	}
	swap(a.issue(-time.Hour, time.Hour, names...))
	if err := os.Symlink(filepath.Join("..data", "tls.crt"), filepath.Join(dir, "tls.crt")); err != nil {
		t.Fatal(err)
	}
	swap(a.issue(-2*time.Hour, -time.Hour, names...))
	harness.Eventually(t, "the expired certificate is a failing condition", func() bool { return strings.Contains(failing(), "it expired on") })
}

func TestRedirect(t *testing.T) {
	t.Parallel()
	s, err := serve(t, front.Settings{RedirectListen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	address := s.RedirectAddr().String()
	for _, tc := range []struct{ request, status, location string }{
		{"GET /w/x/?a=b HTTP/1.1\r\nHost: code.example.com", "308", "https://code.example.com:8443/w/x/?a=b"},
		{"HEAD / HTTP/1.1\r\nHost: a.ws.example.com:80", "308", "https://a.ws.example.com:8443/"},
		{"GET //evil.example/ HTTP/1.1\r\nHost: code.example.com", "308", "https://code.example.com:8443//evil.example/"},
		{"GET /\\evil.example/%0d%0aX:y HTTP/1.1\r\nHost: code.example.com", "308", "https://code.example.com:8443/%5Cevil.example/%0D%0AX:y"},
		{"GET http://code.example.com/x HTTP/1.1\r\nHost: evil.example", "308", "https://code.example.com:8443/x"},
		{"GET http://evil.example/ HTTP/1.1\r\nHost: code.example.com", "421", ""},
		{"GET / HTTP/1.1\r\nHost: evil.example", "421", ""},
		{"GET / HTTP/1.1\r\nHost: code.example.com.evil.example", "421", ""},
		{"GET / HTTP/1.1\r\nHost: code.example.com\r\nX-Forwarded-Host: evil.example", "308", "https://code.example.com:8443/"},
		{"POST /api/v1/login HTTP/1.1\r\nHost: code.example.com\r\nContent-Length: 0", "403", ""},
		{"GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: code.example.com", "308", "https://code.example.com:8443/.well-known/acme-challenge/x"},
	} {
		answer := send(t, address, "127.0.0.1", tc.request+"\r\nConnection: close\r\n\r\n")
		status, head, _ := strings.Cut(strings.TrimPrefix(answer, "HTTP/1.1 "), " ")
		_, location, _ := strings.Cut(head, "\r\nLocation: ")
		location, _, _ = strings.Cut(location, "\r\n")
		if status != tc.status || location != tc.location {
			t.Errorf("%q: %s to %q, want %s to %q", tc.request, status, location, tc.status, tc.location)
		}
	}
	if _, err := serve(t, front.Settings{RedirectListen: address}); err == nil || !strings.HasPrefix(err.Error(), "CODEHUB_REDIRECT_LISTEN: ") {
		t.Errorf("an address in use: %v", err)
	}
}
