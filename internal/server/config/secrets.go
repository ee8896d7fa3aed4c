package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"codehub/internal/base/setting"
)

// fileSuffix ends the name of a variable that names a file with a secret.
const fileSuffix = "_FILE"

// secretsOfOthers are secrets in the environment that are no settings of codehub.
var secretsOfOthers = []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "CODEHUB_IMPORT_TOKEN"}

// secrets returns the variables that may be given by a file: those of fields with the tag secret,
// and those of others.
func secrets() []string {
	out := slices.Clone(secretsOfOthers)
	for f := range Fields() {
		if _, secret := f.Tag.Lookup("secret"); secret {
			out = append(out, variable(f))
		}
	}
	return out
}

// ReadSecrets gives each secret whose variable with _FILE names a file the content of that file,
// without the newlines at its end, in the environment of this process. A relative name is that of a
// credential of systemd, whose folder differs between the server and a maintenance command. It is
// called before the settings are read. It returns a *setting.Problem for a file that cannot be read or is empty, and
// for a secret that is given in both ways.
func ReadSecrets() error {
	for _, name := range secrets() {
		file := os.Getenv(name + fileSuffix)
		if file == "" {
			continue
		}
		if os.Getenv(name) != "" {
			return setting.Invalid(name+fileSuffix, name+" is set as well", "set one of the two")
		}
		do := "name a file that codehub's user can read"
		if credentials := os.Getenv("CREDENTIALS_DIRECTORY"); credentials != "" && !filepath.IsAbs(file) {
			file = filepath.Join(credentials, file)
			do = "name a credential of the unit, such as secrets_x for the file /etc/codehub/secrets/x"
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return setting.Invalid(name+fileSuffix, err.Error(), do)
		}
		secret := strings.TrimRight(string(b), "\r\n")
		if secret == "" {
			return setting.Invalid(name+fileSuffix, fmt.Sprintf("the file %s is empty", file), "write the secret into it")
		}
		if err := os.Setenv(name, secret); err != nil {
			return setting.Invalid(name+fileSuffix, err.Error(), "write the secret into the file as text")
		}
	}
	return nil
}
