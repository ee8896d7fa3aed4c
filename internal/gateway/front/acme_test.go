package front_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"codehub/internal/base/setting"
	"codehub/internal/gateway/front"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
)

// pebbleAt is an ACME authority for tests, which resolves every name to 127.0.0.1.
type pebbleAt struct {
	directory string // URL
	roots     string // file: certificate of the directory's own https
	http      string // address to which it sends HTTP-01
	dns       string // URL of the DNS server's management
	issued    *x509.CertPool
}

func TestMain(m *testing.M) {
	if err := os.Setenv("CODEHUB_ADMIN_PASSWORD", "hooks must not see it"); err != nil {
		panic(err)
	}
	code := m.Run()
	if pebbleDir != "" {
		_ = os.RemoveAll(pebbleDir) // a failed removal fails no test
	}
	os.Exit(code)
}

var pebbleDir string

var buildPebble = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "codehub-pebble-"); err != nil {
		return "", err
	}
	pebbleDir = dir
	const module = "github.com/letsencrypt/pebble/v2"
	out, err := exec.Command("go", "build", "-o", dir, module+"/cmd/pebble", module+"/cmd/pebble-challtestsrv").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return dir, nil
})

func startPebble(t *testing.T) *pebbleAt {
	t.Helper()
	binaries, err := buildPebble()
	if err != nil {
		t.Fatalf("build pebble: %v", err)
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/letsencrypt/pebble/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(strings.TrimSpace(string(module)), "test", "certs")
	var addresses [5]string
	for i := range addresses {
		if addresses[i], err = proc.FreeAddress(); err != nil {
			t.Fatal(err)
		}
	}
	acme, management, http01, dns, dnsManagement := addresses[0], addresses[1], addresses[2], addresses[3], addresses[4]
	_, port, _ := net.SplitHostPort(http01)
	dir := t.TempDir()
	config := `{"pebble": {"listenAddress": "` + acme + `", "managementListenAddress": "` + management + `", "httpPort": ` + port + `, "tlsPort": 1,
		"certificate": "` + filepath.Join(certs, "localhost", "cert.pem") + `", "privateKey": "` + filepath.Join(certs, "localhost", "key.pem") + `",
		"ocspResponderURL": "http://` + silent(t) + `", "retryAfter": {"authz": 1, "order": 1}, "keyAlgorithm": "ecdsa",
		"profiles": {"default": {"description": "", "validityPeriod": 7776000}}}}`
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(binaries, name), args...)
		cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0")
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			log.Close()
			if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
				t.Logf("%s:\n%s", name, text)
			}
		})
	}
	run("pebble-challtestsrv", "-defaultIPv6", "", "-defaultIPv4", "127.0.0.1", "-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "",
		"-dnsserver", dns, "-management", dnsManagement)
	run("pebble", "-config", write(t, filepath.Join(dir, "pebble.json"), []byte(config)), "-dnsserver", dns)
	p := &pebbleAt{
		directory: "https://" + acme + "/dir", roots: filepath.Join(certs, "pebble.minica.pem"), http: http01, dns: "http://" + dnsManagement,
		issued: x509.NewCertPool(),
	}
	roots, err := os.ReadFile(p.roots)
	if err != nil {
		t.Fatal(err)
	}
	own := x509.NewCertPool()
	own.AppendCertsFromPEM(roots)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: own}, DisableKeepAlives: true}}
	harness.Eventually(t, "pebble responds", func() bool {
		res, err := client.Get("https://" + management + "/roots/0")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		issuer, err := io.ReadAll(res.Body)
		return err == nil && p.issued.AppendCertsFromPEM(issuer)
	})
	return p
}

// silent returns the address of an OCSP server that accepts connections and never responds.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func (p *pebbleAt) settings(t *testing.T) front.Settings {
	return front.Settings{ACME: true, ACMEDirectory: p.directory, ACMERoots: p.roots, ACMEFolder: filepath.Join(t.TempDir(), "acme"), ACMEHookTimeout: time.Minute}
}

// A certificate for the only host is issued by HTTP-01, and a later start uses it again.
func TestACMEByHTTP(t *testing.T) {
	t.Parallel()
	p := startPebble(t)
	settings := p.settings(t)
	settings.RedirectListen, settings.ACMEEmail = p.http, "admin@example.com"
	s, err := serveNames(t, settings, "code.example.com")
	if err != nil {
		t.Fatal(err)
	}
	trusted := &tls.Config{RootCAs: p.issued}
	var body string
	harness.Eventually(t, "the certificate is served", func() bool {
		body, _, err = s.get(t, "code.example.com", trusted, true)
		return err == nil
	})
	if body != "HTTP/2.0 127.0.0.1 https code.example.com" {
		t.Errorf("answer: %q", body)
	}
	if answer := send(t, p.http, "127.0.0.1", "GET /x HTTP/1.1\r\nHost: code.example.com\r\nConnection: close\r\n\r\n"); !strings.Contains(answer, "\r\nLocation: https://code.example.com:8443/x\r\n") {
		t.Errorf("the listener of the challenge does not redirect: %q", answer)
	}
	if _, _, err := s.get(t, "www.example.com", trusted, true); err == nil {
		t.Error("another name has a certificate")
	}
	_, state, err := s.get(t, "code.example.com", trusted, true)
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	again, err := serveNames(t, settings, "code.example.com")
	if err != nil {
		t.Fatal(err)
	}
	var next *tls.ConnectionState
	harness.Eventually(t, "the certificate is served after a restart", func() bool {
		_, next, err = again.get(t, "code.example.com", trusted, true)
		return err == nil
	})
	if !next.PeerCertificates[0].Equal(state.PeerCertificates[0]) {
		t.Error("the restart obtained another certificate")
	}
	if err := filepath.WalkDir(settings.ACMEFolder, func(path string, d os.DirEntry, err error) error {
		if fi, ierr := d.Info(); err == nil && ierr == nil && fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v", path, fi.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// hook writes a program that calls the management of pebble's DNS server, and logs its
// calls and its environment.
func (p *pebbleAt) hook(t *testing.T) (program, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	program = write(t, filepath.Join(dir, "hook"), []byte(`#!/bin/sh
set -e
case $1 in
present) curl -sf -d "{\"host\":\"$2\",\"value\":\"$3\"}" `+p.dns+`/set-txt ;;
cleanup) curl -sf -d "{\"host\":\"$2\"}" `+p.dns+`/clear-txt ;;
esac
echo "$1 $2 $(env | grep -c ^CODEHUB_ || true)" >>`+log+`
`))
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	return program, log
}

// A wildcard certificate is issued by DNS-01, through the hook.
func TestACMEByDNS(t *testing.T) {
	t.Parallel()
	p := startPebble(t)
	settings := p.settings(t)
	program, log := p.hook(t)
	settings.ACMEHook = program
	s, err := serveNames(t, settings, "code.example.com", "*.ws.example.com")
	if err != nil {
		t.Fatal(err)
	}
	trusted := &tls.Config{RootCAs: p.issued}
	for host, http2 := range map[string]bool{"code.example.com": true, "a.ws.example.com": true, "b.ws.example.com": false} {
		harness.Eventually(t, "the certificate of "+host+" is served", func() bool {
			_, _, err := s.get(t, host, trusted, http2)
			return err == nil
		})
	}
	harness.Eventually(t, "the hook has removed the records", func() bool {
		calls, err := os.ReadFile(log)
		return err == nil && strings.Count(string(calls), "\n") == 4
	})
	calls, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"code", "ws"} {
		for _, action := range []string{"present", "cleanup"} {
			if !strings.Contains(string(calls), action+" _acme-challenge."+name+".example.com. 0\n") {
				t.Errorf("no call to %s %s, or with settings in the environment: %s", action, name, calls)
			}
		}
	}
}

// A main host that the wildcard covers needs no other certificate.
func TestACMEWildcardCoversMainHost(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	p := startPebble(t)
	settings := p.settings(t)
	var log string
	settings.ACMEHook, log = p.hook(t)
	s, err := serveNames(t, settings, "code.example.com", "*.example.com")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the certificate is served", func() bool {
		_, state, err := s.get(t, "code.example.com", &tls.Config{RootCAs: p.issued}, true)
		return err == nil && state.PeerCertificates[0].DNSNames[0] == "*.example.com"
	})
	if calls, err := os.ReadFile(log); err != nil || strings.Count(string(calls), "present") != 1 {
		t.Errorf("calls: %s, %v", calls, err)
	}
}

// A failure is a condition with its cause, and is retried.
func TestACMEFailure(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	p := startPebble(t)
	settings := p.settings(t)
	dir := t.TempDir()
	settings.ACMEHook = write(t, filepath.Join(dir, "hook"), []byte("#!/bin/sh\necho the zone is locked >&2\nexit 3\n"))
	if _, err := serveNames(t, settings, "*.example.com"); !isProblem(err, "CODEHUB_ACME_DNS_HOOK") {
		t.Errorf("a hook that cannot be executed: %v", err)
	}
	if err := os.Chmod(settings.ACMEHook, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := serveNames(t, settings, "*.example.com")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the hook's words are in the failing condition", func() bool {
		state, err := json.Marshal(s.conditions.States())
		return err == nil && strings.Contains(string(state), "the zone is locked")
	})
	settings.ACMERoots = write(t, filepath.Join(dir, "roots"), []byte("none"))
	if _, err := serveNames(t, settings, "*.example.com"); !isProblem(err, "CODEHUB_ACME_ROOTS") {
		t.Errorf("roots without a certificate: %v", err)
	}
}

// A hook that exceeds its timeout is killed, with the programs that it has started.
func TestHookTimeout(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	p := startPebble(t)
	settings := p.settings(t)
	settings.ACMEHookTimeout = 5 * time.Second
	child := filepath.Join(t.TempDir(), "child")
	settings.ACMEHook = write(t, filepath.Join(t.TempDir(), "hook"), []byte("#!/bin/sh\nsleep 1000 &\necho $! >"+child+"\nwait\n"))
	if err := os.Chmod(settings.ACMEHook, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := serveNames(t, settings, "*.example.com")
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the timeout is a failing condition", func() bool {
		state, err := json.Marshal(s.conditions.States())
		return err == nil && strings.Contains(string(state), "did not end within 5s")
	})
	pid, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the program that the hook has started is gone", func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ") // ended, and its parent does not wait for it
	})
}

func isProblem(err error, name string) bool {
	var p *setting.Problem
	return errors.As(err, &p) && p.Setting == name
}
