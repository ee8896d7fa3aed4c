package maintenance

import (
	"log/slog"
	"testing"

	"github.com/google/uuid"

	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
)

// An installation on Kubernetes has no data folder here, so a server that uses the folder is
// another one's.
func TestUninstallOnKubernetesIgnoresDataFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := embedded.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release() }()
	for runtime, refused := range map[string]bool{config.Docker: true, config.Kubernetes: false} {
		c := uninstallCmd{Installation: uuid.NewString(), Config: config.Config{DataDir: dir, Runtime: runtime}}
		id, release, err := c.claim(t.Context(), slog.New(slog.DiscardHandler))
		if refused != (err != nil) || err == nil && id != c.Installation {
			t.Errorf("%s: %s, %v", runtime, id, err)
		}
		if err == nil {
			release()
		}
	}
}
