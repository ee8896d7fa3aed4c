package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"codehub/internal/testing/harness"
)

// mode is a way in which codehub and its workspaces are reached. PORT stands for the
// server's port.
type mode struct {
	name       string
	main       string // CODEHUB_URL; https is served by codehub itself
	workspaces string // CODEHUB_WORKSPACE_URL
}

// The modes. At example.com all hosts belong to one site.
var (
	ownOrigins = mode{"origins", "http://codehub.localhost:PORT", ""} // {id}.localhost, the default
	siblings   = mode{"siblings", "https://code.example.com:PORT", "https://*.example.com:PORT"}
	suffix     = mode{"suffix", "https://code.example.com:PORT", "https://*-ws.example.com:PORT"}
	plain      = mode{"plain", "http://code.example.com:PORT", "http://*.example.com:PORT"} // has to be allowed
	pathMode   = mode{"path", "http://codehub.localhost:PORT", "path"}

	originModes = []mode{ownOrigins, siblings, suffix, plain}
	allModes    = slices.Concat(originModes, []mode{pathMode})
)

func (m mode) https() bool { return strings.HasPrefix(m.main, "https:") }

// orAll returns the modes that differ most in make test, and all in make verify.
func orAll(all []mode, most ...mode) []mode {
	if harness.Verifying() {
		return all
	}
	return most
}

// inEach runs f in each of these modes.
func inEach(t *testing.T, modes []mode, f func(t *testing.T, m mode)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			f(t, m)
		})
	}
}

// settings returns the settings of the mode.
func (m mode) settings(port string, c *certificate) []string {
	list := []string{"CODEHUB_ALLOW_HTTP=" + strconv.FormatBool(!m.https())}
	if m.workspaces != "" {
		list = append(list, "CODEHUB_WORKSPACE_URL="+strings.Replace(m.workspaces, "PORT", port, 1))
	}
	if m.https() {
		list = append(list, "CODEHUB_TLS_CERT="+c.cert, "CODEHUB_TLS_KEY="+c.key)
	}
	return list
}

// originOf returns the origin of a workspace, or of a port in it. In path mode there is
// none.
func (s *server) originOf(id string) string {
	if s.mode.workspaces == "" {
		return strings.Replace(s.URL, "://codehub.", "://"+id+".", 1)
	}
	u, _ := url.Parse(s.URL)
	return strings.NewReplacer("*", id, "PORT", u.Port()).Replace(s.mode.workspaces)
}

// addressOf returns the address of a workspace for its visitors, without a slash at the
// end.
func (s *server) addressOf(id string) string {
	if s.mode == pathMode {
		return s.URL + "/w/" + id
	}
	return s.originOf(id)
}

// portOf returns the address of a port of a workspace, without a slash at the end.
func (s *server) portOf(id, port string) string {
	if s.mode == pathMode {
		return s.addressOf(id) + "/proxy/" + port
	}
	return s.originOf(port + "--" + id)
}

// sessionCookie is the name of the session cookie on codehub's own host.
func (s *server) sessionCookie() string {
	if s.mode.https() {
		return "__Host-" + session
	}
	return session
}

// anyLocalhost is a transport that resolves *.localhost as browsers do.
var anyLocalhost = transport(nil)

// dialLocalhost is a dialer that resolves *.localhost as browsers do.
func dialLocalhost(ctx context.Context, network, address string) (net.Conn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, ".localhost") {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return (&net.Dialer{}).DialContext(ctx, network, address)
}

// transport leads to this machine by any name. It trusts the certificates in roots.
func transport(roots *x509.CertPool) *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		},
	}
}

// dial connects to the server, with TLS in the modes with https.
func (s *server) dial() net.Conn {
	s.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		s.Fatal(err)
	}
	c, err := net.Dial("tcp", "127.0.0.1:"+u.Port())
	if err != nil {
		s.Fatal(err)
	}
	if s.mode.https() {
		c = tls.Client(c, &tls.Config{RootCAs: s.certificate.roots, ServerName: u.Hostname()})
	}
	s.Cleanup(func() { _ = c.Close() })
	return c
}

// browser starts a Chromium that reaches the server in its mode.
func (s *server) browser(t *testing.T) *browser {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{chromedp.Flag("host-resolver-rules", "MAP *.example.com 127.0.0.1")}
	if s.mode.https() {
		options = append(options, chromedp.Flag("ignore-certificate-errors-spki-list", s.certificate.spki))
	}
	return newBrowser(t, s.URL, options...)
}

// certificate is a certificate that has signed itself, in files.
type certificate struct {
	cert, key string         // the files
	roots     *x509.CertPool // all that were issued
	spki      string         // the hash of the last one's public key by which Chromium can be told to trust it
}

func newCertificate(dir string) *certificate {
	return &certificate{cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), roots: x509.NewCertPool()}
}

// issue writes a new certificate for these names.
func (c *certificate) issue(t testing.TB, names ...string) (serial *big.Int) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial = big.NewInt(time.Now().UnixNano())
	// curl refuses an issuer without a name.
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.roots.AppendCertsFromPEM(cert)
	hash := sha256.Sum256(public)
	c.spki = base64.StdEncoding.EncodeToString(hash[:])
	for path, content := range map[string][]byte{c.cert: cert, c.key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return serial
}
