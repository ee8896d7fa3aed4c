package registry

import (
	"encoding/base64"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestParseLogins(t *testing.T) {
	t.Parallel()
	basic := base64.StdEncoding.EncodeToString([]byte("ann:pass:word"))
	logins, err := ParseLogins([]byte(`{"auths": {
		"https://index.docker.io/v1/": {"auth": "` + basic + `"},
		"Registry.example.com:5000": {"username": "bob", "password": "secret"},
		"https://other.example.com": {"identitytoken": "token"}
	}, "HttpHeaders": {}}`))
	if err != nil || len(logins) != 3 {
		t.Fatalf("%d logins (%v)", len(logins), err)
	}
	for host, want := range map[string][3]string{
		"docker.io": {"ann", "pass:word", ""}, "registry.example.com:5000": {"bob", "secret", ""}, "other.example.com": {"", "", "token"},
	} {
		if l := logins[host]; l.Username != want[0] || l.Password != want[1] || l.IdentityToken != want[2] {
			t.Errorf("%s: %+v", host, l)
		}
	}
}

// No error repeats a part of the file.
func TestWrongAuthFiles(t *testing.T) {
	t.Parallel()
	for content, says := range map[string]string{
		`hunter2`:                                                                                      "format",
		`{"auths": {"a": "hunter2"}}`:                                                                  "format",
		`{"auths": {}, "credsStore": "hunter2"}`:                                                       "credential helpers",
		`{"credHelpers": {"registry.example.com": "hunter2"}}`:                                         "credential helpers",
		`{"auths": {"registry.example.com": {}}}`:                                                      "username",
		`{"auths": {"registry.example.com": {"username": "a"}}}`:                                       "username",
		`{"auths": {"registry.example.com": {"auth": "hunter2"}}}`:                                     "base64",
		`{"auths": {"registry.example.com/team": {"username": "a", "password": "hunter2"}}}`:           "without a repository",
		`{"auths": {"https://user:hunter2@registry.example.com": {"username": "a", "password": "b"}}}`: "not a registry",
		`{"auths": {"": {"username": "a", "password": "b"}}}`:                                          "registry",
		`{"auths": {"docker.io": {"username": "a", "password": "b"}, "index.docker.io": {"username": "a", "password": "b"}}}`: "more than one",
	} {
		_, err := ParseLogins([]byte(content))
		if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestAuthFileIsNoPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLogins(pipe); err == nil {
		t.Error("no error")
	}
}
