package installation

import (
	"fmt"
	"path/filepath"

	"codehub/internal/server/config"
	"codehub/internal/users/sealed"
)

// OpenKeys opens the keys that encrypt secrets in the database. With the embedded database and no
// setting they are in the data folder, where a first key is made.
func OpenKeys(cfg config.Config) (*sealed.Ring, error) {
	open, file := sealed.Open, cfg.Sealed.File
	if file == "" && cfg.DatabaseURL == "" {
		open, file = sealed.OpenOrCreate, filepath.Join(cfg.DataDir, sealed.DefaultFile)
	}
	keys, err := open(file)
	if err != nil {
		return nil, fmt.Errorf("open the keys of secrets: %w", err)
	}
	return keys, nil
}
