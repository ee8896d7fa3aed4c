package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
)

// Login is what is sent to one registry. The zero value is no login.
type Login struct {
	Username, Password           string
	IdentityToken, RegistryToken string
}

// Secrets returns what no message may contain.
func (l Login) Secrets() []string {
	var out []string
	for _, secret := range []string{l.Password, l.IdentityToken, l.RegistryToken} {
		if secret != "" {
			out = append(out, secret)
		}
	}
	if l.Password != "" {
		out = append(out, base64.StdEncoding.EncodeToString([]byte(l.Username+":"+l.Password)))
	}
	return out
}

// entry is a login as the file has it.
type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// maxAuthFile is the longest file of credentials that is read.
const maxAuthFile = 1 << 20

// Exposed reports that every user of the machine can read the file.
func Exposed(file string) error {
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o004 != 0 {
		return fmt.Errorf("every user of this machine can read %s: run chmod o-rwx on it", file)
	}
	return nil
}

// ReadLogins reads a file in the format of Docker's config.json. It returns the logins
// by registry, as imageref.Registry names it. No error has a part of the content.
func ReadLogins(file string) (map[string]Login, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a file", file))
	}
	content, err := io.ReadAll(io.LimitReader(f, maxAuthFile))
	if err != nil {
		return nil, err
	}
	logins, err := ParseLogins(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return logins, nil
}

// ParseLogins reads the content of such a file.
func ParseLogins(content []byte) (map[string]Login, error) {
	var in struct {
		Auths       map[string]entry  `json:"auths"`
		Store       string            `json:"credsStore"`
		CredHelpers map[string]string `json:"credHelpers"`
	}
	if json.Unmarshal(content, &in) != nil {
		return nil, errors.New("it is not in the format of Docker's config.json")
	}
	if in.Store != "" || len(in.CredHelpers) > 0 {
		return nil, errors.New("it names credential helpers (credsStore or credHelpers), which codehub does not run: write the credentials themselves under auths")
	}
	out := map[string]Login{}
	for _, key := range slices.Sorted(maps.Keys(in.Auths)) {
		host, err := registryOf(key)
		if err != nil {
			return nil, err
		}
		l, err := loginOf(in.Auths[key])
		if err != nil {
			return nil, fmt.Errorf("the entry of %s: %w", host, err)
		}
		if _, twice := out[host]; twice {
			return nil, fmt.Errorf("%s has more than one entry", host)
		}
		out[host] = l
	}
	return out, nil
}

// registryOf returns the registry that a key of auths names: a host with an optional
// port, or a URL such as Docker writes for Docker Hub.
func registryOf(key string) (string, error) {
	host := strings.ToLower(key)
	if strings.Contains(host, "://") {
		u, err := url.Parse(host)
		if err != nil || u.User != nil {
			return "", errors.New("a key of auths is not a registry")
		}
		host = u.Host + strings.TrimRight(u.Path, "/")
	}
	host, path, _ := strings.Cut(host, "/")
	if host == "" || path != "" && path != "v1" && path != "v2" {
		// The credentials would be sent for other repositories of the registry as well.
		return "", fmt.Errorf("the key %.100q of auths must be a registry without a repository", key)
	}
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		host = "docker.io"
	}
	return host, nil
}

func loginOf(e entry) (Login, error) {
	if e.Auth != "" {
		text, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
		if err != nil || !ok {
			return Login{}, errors.New("auth is not user:password in base64")
		}
		e.Username, e.Password = user, password
	}
	if e.IdentityToken == "" && e.RegistryToken == "" && (e.Username == "" || e.Password == "") {
		return Login{}, errors.New("it has no username and password, no auth and no identitytoken")
	}
	return Login{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}, nil
}
