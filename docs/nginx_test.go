package docs_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// nginx accepts the configuration of reverse-proxy.md.
func TestNginxConfigurationIsValid(t *testing.T) {
	t.Parallel()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Fatalf("scripts/setup.sh check installs it: %v", err)
	}
	dir := t.TempDir()
	certificate(t, filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	server := strings.NewReplacer(
		"/etc/letsencrypt/live/code.example.com/fullchain.pem", filepath.Join(dir, "cert.pem"),
		"/etc/letsencrypt/live/code.example.com/privkey.pem", filepath.Join(dir, "key.pem"),
	).Replace(example(t, "reverse-proxy.md", "nginx"))
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil { // the page says to remove these lines on a machine without IPv6
		server = regexp.MustCompile(`(?m)^ *listen \[::\].*\n`).ReplaceAllString(server, "")
	}
	conf := filepath.Join(dir, "nginx.conf")
	text := "pid " + dir + "/pid; error_log stderr; events {}\nhttp {\naccess_log off;\n"
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		text += kind + "_temp_path " + dir + "/" + kind + ";\n"
	}
	if err := os.WriteFile(conf, []byte(text+server+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(nginx, "-t", "-e", filepath.Join(dir, "log"), "-c", conf).CombinedOutput(); err != nil {
		t.Errorf("nginx -t: %v\n%s", err, out)
	}
}

// certificate writes a self-signed certificate and its key.
func certificate(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"code.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: signed}, key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
