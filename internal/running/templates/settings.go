package templates

import (
	"os"
	"path/filepath"

	"codehub/internal/base/setting"
)

// Settings say where templates are, as codehub serve declares it.
type Settings struct {
	Dir string `name:"templates-dir" env:"CODEHUB_TEMPLATES_DIR" help:"Folder with templates of workspaces, a YAML file each, which is read again when it changes (default: none)."`
}

// Resolve checks the settings. It returns the first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	if s.Dir == "" {
		return nil
	}
	dir, err := filepath.Abs(s.Dir)
	if err == nil {
		s.Dir = dir
		_, err = os.ReadDir(dir)
	}
	if err != nil {
		return setting.Invalid("CODEHUB_TEMPLATES_DIR", err.Error(), "name a folder that the server can read")
	}
	return nil
}
