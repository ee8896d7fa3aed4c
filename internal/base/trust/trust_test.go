package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"codehub/internal/storage/transfer"
	"codehub/internal/testing/harness/authority"
)

// An executed test is the process that Install changes: the roots of a process are read once.
const (
	fileVariable = "TEST_CODEHUB_CA_FILE"
	urlVariable  = "TEST_CODEHUB_URL"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(urlVariable); url != "" {
		os.Exit(connect(os.Getenv(fileVariable), url))
	}
	os.Exit(m.Run())
}

func connect(file, url string) int {
	before := os.Getenv("SSL_CERT_FILE")
	if file != "" {
		company, err := Read(file)
		if err == nil {
			err = Install(company)
		}
		if err != nil {
			os.Stderr.WriteString("install: " + err.Error())
			return 1
		}
	}
	for _, client := range []*http.Client{http.DefaultClient, {Transport: transfer.NewTransport()}} {
		res, err := client.Get(url)
		if err != nil {
			os.Stderr.WriteString(err.Error())
			return 1
		}
		res.Body.Close()
	}
	if os.Getenv("SSL_CERT_FILE") != before {
		os.Stderr.WriteString("the variable is changed")
		return 1
	}
	pool, err := x509.SystemCertPool()
	if err != nil || pool.Equal(x509.NewCertPool()) {
		return 1
	}
	for root := range slices.Values(pems(public())) { // one that every system has
		if strings.Contains(root.Subject.CommonName, "ISRG Root X1") {
			if _, err := root.Verify(x509.VerifyOptions{}); err != nil {
				os.Stderr.WriteString("a public authority: " + err.Error())
				return 1
			}
		}
	}
	return 0
}

func pems(text []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, c)
		}
	}
	return out
}

// All clients of a process trust the company's authority in addition to the system's.
func TestInstall(t *testing.T) {
	t.Parallel()
	a := authority.New(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = a.Server()
	server.StartTLS()
	t.Cleanup(server.Close)
	run := func(file string) (string, error) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), fileVariable+"="+file, urlVariable+"="+server.URL)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(""); err == nil || !strings.Contains(out, "unknown authority") {
		t.Errorf("without the authority: %v, %s", err, out)
	}
	if out, err := run(a.File()); err != nil {
		t.Errorf("with it: %v, %s", err, out)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	a, b := authority.New(t), authority.New(t)
	certificate, key := a.Issue()
	for name, tc := range map[string]struct {
		content string
		want    string // a part of the error; empty: both authorities
	}{
		"two":           {"# of the company\n" + string(a.PEM) + "\n\ncomment\n" + string(b.PEM), ""},
		"nothing":       {"", "no certificate in PEM"},
		"DER":           {string(pems(a.PEM)[0].Raw), "no certificate in PEM"},
		"a private key": {string(certificate) + string(key), `has a block "PRIVATE KEY"`},
		"damaged":       {string(a.PEM) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 2 of"},
		"a whole disk":  {strings.Repeat(string(a.PEM), 200), "larger than 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.WriteFile(file, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Read(file)
			switch {
			case tc.want == "" && (err != nil || !bytes.Equal(got, slices.Concat(a.PEM, b.PEM))):
				t.Errorf("%v, %s", err, got)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file")
	}
}

// A list has what the image trusts and the company's; an image that trusts nobody gets the
// public authorities, since some programs have their own list only until a variable names one.
func TestFiles(t *testing.T) {
	t.Parallel()
	a, own := authority.New(t), authority.New(t)
	got := Files(bytes.TrimSpace(own.PEM), a.PEM)
	if want := slices.Concat(own.PEM, a.PEM); !bytes.Equal(got[bundleFile], want) || !bytes.Equal(got[companyFile], a.PEM) {
		t.Errorf("%s", got)
	}
	if n := len(pems(Files(nil, a.PEM)[bundleFile])); n < 50 {
		t.Errorf("%d authorities in an image without any", n)
	}
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{bundleFile, companyFile, javaFile}) {
		t.Errorf("%q", names)
	}
}

func TestEnvKeepsVariablesOfImage(t *testing.T) {
	t.Parallel()
	env := Env([]string{"PATH=/bin", "SSL_CERT_FILE=/own", "JAVA_TOOL_OPTIONS="})
	if _, set := env["SSL_CERT_FILE"]; set || env["GIT_SSL_CAINFO"] != BundlePath || len(env) != 5 {
		t.Errorf("%q", env)
	}
}
