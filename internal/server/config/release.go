package config

import "github.com/alecthomas/kong"

// The default images of a release, by digest, which its build sets (scripts/build.sh). Without them
// the defaults are those in the tags of the settings.
var ideImage, workspaceImage string

// BeforeReset sets the defaults of the release, and reads the secrets that are in files, before kong
// reads the environment.
func (*Config) BeforeReset(k *kong.Context) error {
	for _, f := range k.Flags() {
		switch {
		case f.Name == "ide-image" && ideImage != "":
			f.Default = ideImage
		case f.Name == "default-image" && workspaceImage != "":
			f.Default = workspaceImage
		}
	}
	return ReadSecrets()
}
