package installation

import (
	"log/slog"
	"path/filepath"

	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/base/setting"
	"codehub/internal/server/config"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/store"
)

// OpenBucket opens an installation's part of the bucket without contacting it.
// conditions lists that it does not respond; nil: it is only logged.
func OpenBucket(cfg config.Config, installation string, conditions *health.Monitor, log *slog.Logger) (*bucket.Bucket, error) {
	br := breaker.New(breaker.Config{Name: "bucket", Log: log, Conditions: conditions})
	store, err := store.OpenOver(cfg.ArchiveURL, br.Transport)
	if err != nil {
		return nil, &setting.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "give one like file:///srv/archives or s3://bucket/prefix"}
	}
	c := bucket.Config{Store: store, Installation: installation, Version: cfg.Version, Authorities: cfg.Authorities, Settings: cfg.Bucket, Breaker: br, Log: log, Conditions: conditions}
	if cfg.Archives.Scheme == "file" {
		c.Folder = filepath.Clean(cfg.Archives.Path)
		c.HostFolder, err = bucket.HostPath(c.Folder, cfg.DataDir, cfg.HostDataDir)
	} else if cfg.Runtime != config.Kubernetes { // there, jobs have a network
		c.SocketDir = filepath.Join(cfg.DataDir, "run", "bucket")
		c.HostSocketDir, err = bucket.HostPath(c.SocketDir, cfg.DataDir, cfg.HostDataDir)
	}
	if err != nil {
		return nil, &setting.Problem{Setting: "CODEHUB_ARCHIVE_URL", Why: err.Error(), Do: "or leave CODEHUB_HOST_DATA_DIR unset, if codehub itself is in no container"}
	}
	return bucket.New(c)
}
