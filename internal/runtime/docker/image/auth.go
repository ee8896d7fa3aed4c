package image

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/authconfig"
	dockerregistry "github.com/moby/moby/api/types/registry"

	"codehub/internal/runtime"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// login is what is sent to one registry. The zero value is no login.
type login struct {
	encoded string
	secrets []string // what no message may contain
}

// credentials returns the login for the registry that the reference names. The file is
// read again each time, so that credentials can be rotated; while it cannot be used,
// there is no login, and the condition registry-login says so.
func (i *Images) credentials(ref string) login {
	l, ok := i.CheckLogins()[imageref.Registry(ref)]
	if !ok {
		return login{}
	}
	encoded, err := authconfig.Encode(dockerregistry.AuthConfig{
		Username: l.Username, Password: l.Password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken, ServerAddress: imageref.Registry(ref),
	})
	if err != nil {
		i.noLogin.Set(err)
		return login{}
	}
	return login{encoded: encoded, secrets: l.Secrets()}
}

// CheckLogins reads the file and reports what is wrong with it.
func (i *Images) CheckLogins() map[string]registry.Login {
	if i.cfg.RegistryAuthFile == "" {
		return nil
	}
	logins, err := registry.ReadLogins(i.cfg.RegistryAuthFile)
	if err == nil {
		err = registry.Exposed(i.cfg.RegistryAuthFile)
	}
	i.noLogin.Set(err)
	return logins
}

// refusal is the error of a pull: without the secrets, which a registry may repeat, and
// with what to do where that is known. Docker's own message follows, which pages show to
// administrators.
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
	switch registry.OfMessage(pull.Message) {
	case registry.Unreachable:
		pull.Message = workspace.Cut(fmt.Sprintf(runtime.MsgNoRegistry, host) + " " + pull.Message)
	case registry.Missing:
		pull.Message = workspace.Cut(fmt.Sprintf(runtime.MsgNoImage, host) + " " + pull.Message)
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
