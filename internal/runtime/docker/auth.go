package docker

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

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"

	"codehub/internal/imageref"
	"codehub/internal/runtime"
)

// login is what is sent to one registry. The zero value is no login.
type login struct {
	encoded string
	secrets []string // what no message may contain
}

// maxAuthFile is the longest file of credentials that is read.
const maxAuthFile = 1 << 20

// credentials returns the login for the registry that the reference names. The file is
// read again each time, so that credentials can be rotated; while it cannot be used,
// there is no login, and the condition registry-login says so.
func (r *Runtime) credentials(ref string) login {
	return r.checkLogins()[imageref.Registry(ref)]
}

// checkLogins reads the file and reports what is wrong with it.
func (r *Runtime) checkLogins() map[string]login {
	if r.cfg.RegistryAuthFile == "" {
		return nil
	}
	logins, err := readAuthFile(r.cfg.RegistryAuthFile)
	if err == nil {
		err = exposed(r.cfg.RegistryAuthFile)
	}
	r.noLogin.Set(err)
	return logins
}

// exposed reports that every user of the machine can read the file.
func exposed(file string) error {
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o004 != 0 {
		return fmt.Errorf("every user of this machine can read %s: run chmod o-rwx on it", file)
	}
	return nil
}

// readAuthFile reads a file in the format of Docker's config.json. It returns the logins
// by registry, as imageref.Registry names it. No error has a part of the content.
func readAuthFile(file string) (map[string]login, error) {
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
	logins, err := parseAuthFile(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return logins, nil
}

func parseAuthFile(content []byte) (map[string]login, error) {
	var in struct {
		Auths       map[string]registry.AuthConfig `json:"auths"`
		Store       string                         `json:"credsStore"`
		CredHelpers map[string]string              `json:"credHelpers"`
	}
	if json.Unmarshal(content, &in) != nil {
		return nil, errors.New("it is not in the format of Docker's config.json")
	}
	if in.Store != "" || len(in.CredHelpers) > 0 {
		return nil, errors.New("it names credential helpers (credsStore or credHelpers), which codehub does not run: write the credentials themselves under auths")
	}
	out := map[string]login{}
	for _, key := range slices.Sorted(maps.Keys(in.Auths)) {
		host, err := registryOf(key)
		if err != nil {
			return nil, err
		}
		l, err := loginOf(host, in.Auths[key])
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

func loginOf(host string, a registry.AuthConfig) (login, error) {
	if a.Auth != "" {
		text, err := base64.StdEncoding.DecodeString(a.Auth)
		user, password, ok := strings.Cut(strings.TrimRight(string(text), "\x00"), ":")
		if err != nil || !ok {
			return login{}, errors.New("auth is not user:password in base64")
		}
		a.Username, a.Password = user, password
	}
	if a.IdentityToken == "" && a.RegistryToken == "" && (a.Username == "" || a.Password == "") {
		return login{}, errors.New("it has no username and password, no auth and no identitytoken")
	}
	l := login{}
	for _, secret := range []string{a.Password, a.IdentityToken, a.RegistryToken, a.Auth, base64.StdEncoding.EncodeToString([]byte(a.Username + ":" + a.Password))} {
		if secret != "" {
			l.secrets = append(l.secrets, secret)
		}
	}
	a.Auth, a.ServerAddress = "", host
	var err error
	l.encoded, err = authconfig.Encode(a)
	return l, err
}

// refusal is the error of a pull: without the secrets, which a registry may repeat, and
// with what to do if it refuses the login.
func (l login) refusal(ref string, err error) error {
	var pull *runtime.PullError
	if !errors.As(err, &pull) {
		return err
	}
	host := imageref.Registry(ref)
	switch {
	case refusesLogin(err) && l.encoded != "":
		return &runtime.PullError{Image: pull.Image, Message: fmt.Sprintf(runtime.MsgLoginRefused, host)}
	case refusesLogin(err):
		return &runtime.PullError{Image: pull.Image, Message: fmt.Sprintf(runtime.MsgLoginNeeded, host)}
	}
	for _, secret := range l.secrets {
		pull.Message = strings.ReplaceAll(pull.Message, secret, "…")
	}
	return pull
}

// refusesLogin reports whether a registry wants another login, or any. Docker has no error
// code for that in the stream of a pull.
func refusesLogin(err error) bool {
	if errdefs.IsUnauthorized(err) || errdefs.IsPermissionDenied(err) {
		return true
	}
	text := strings.ToLower(err.Error())
	for _, words := range []string{"unauthorized", "authentication required", "no basic auth credentials", "access denied", "denied: ", "403 forbidden", "incorrect username or password"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
