package redisbus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/redistest"
)

// Wrong settings and an unreachable server give different errors.
func TestCheck(t *testing.T) {
	t.Parallel()
	plain, guarded := redistest.New(t), redistest.New(t, "--requirepass", "secret", "--databases", "2")
	guarded.Do("ACL", "SETUSER", "weak", "on", ">weak", "~*", "&*", "+ping")
	narrow := []any{"ACL", "SETUSER", "narrow", "on", ">narrow", "~codehub:activity*", "&codehub:*"}
	for _, c := range strings.Split(Commands, ", ") {
		narrow = append(narrow, "+"+strings.ToLower(c))
	}
	guarded.Do(narrow...)
	tlsAddr, tlsURL := withTLS(t)
	gone := redistest.New(t)
	gone.Stop()
	for name, c := range map[string]struct {
		url, unusable, away string
	}{
		"plain":                {url: plain.URL()},
		"no path":              {url: "redis://" + plain.Addr()},
		"another database":     {url: "redis://" + plain.Addr() + "/3"},
		"socket":               {url: "unix://" + plain.Socket() + "?db=1"},
		"password":             {url: guarded.URL()},
		"TLS":                  {url: tlsURL + "?skip_verify=true"},
		"a narrow user":        {url: "redis://narrow:narrow@" + guarded.Addr() + "/1"},
		"wrong password":       {url: "redis://:wrong@" + guarded.Addr(), unusable: "refuses the name or password"},
		"unknown user":         {url: "redis://who:secret@" + guarded.Addr(), unusable: "refuses the name or password"},
		"no password":          {url: "redis://" + guarded.Addr(), unusable: "wants a password"},
		"a weak user":          {url: "redis://weak:weak@" + guarded.Addr(), unusable: "may not do what codehub needs"},
		"no such database":     {url: "redis://:secret@" + guarded.Addr() + "/7", unusable: "no such database"},
		"TLS for none":         {url: "rediss://" + plain.Addr(), away: "deadline"}, // Redis waits for the end of a line
		"an unknown authority": {url: tlsURL, away: "certificate"},
		"no TLS for TLS":       {url: "redis://" + tlsAddr, away: ""},
		"unreachable":          {url: gone.URL(), away: "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, c.url)
			err := b.Check(t.Context())
			var unusable *Unusable
			if c.away != "deadline" { // a busy machine may take longer than Redis may
				harness.EventuallyWithin(t, limit, "an answer in time", func() bool {
					if late(err) {
						err = b.Check(t.Context())
					}
					return !late(err)
				})
			}
			away := c.away != "" || name == "no TLS for TLS"
			switch bad := errors.As(err, &unusable); {
			case c.unusable != "":
				if !bad || !strings.Contains(unusable.Why, c.unusable) {
					t.Errorf("%v, want %q", err, c.unusable)
				}
			case bad:
				t.Errorf("unusable: %v", err)
			case away:
				if err == nil || !strings.Contains(err.Error(), c.away) {
					t.Errorf("%v, want %q", err, c.away)
				}
			case err != nil:
				t.Error(err)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the password is in the error: %v", err)
			}
		})
	}
}

// late reports whether an error is that of a limit of time.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || timedOut(err)
}

func TestOpenInvalidURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"http://host", "redis://u:se cret@host/0", "redis://:secret@host/notanumber", "redis://:secret@host/1/2", "unix://", "redis://:secret@host?nonsense=1", "::",
	} {
		b, err := Open(Config{URL: url})
		var unusable *Unusable
		if !errors.As(err, &unusable) || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v", url, err)
		}
		if err == nil {
			_ = b.Close()
		}
	}
}

// withTLS starts a server with TLS and its own certificate.
func withTLS(t *testing.T) (addr, url string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	signed, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, kind string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	if addr, err = proc.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(addr)
	crt := file("crt", "CERTIFICATE", signed)
	redistest.New(t, "--tls-port", port, "--tls-cert-file", crt, "--tls-key-file", file("key", "PRIVATE KEY", private),
		"--tls-ca-cert-file", crt, "--tls-auth-clients", "no")
	return addr, "rediss://" + addr + "/0"
}
