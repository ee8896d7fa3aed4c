package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"codehub/internal/base/setting"
	"codehub/internal/control/replica"
	"codehub/internal/postgres"
	"codehub/internal/server/config"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

// join adds this server to the list of servers. It returns a *setting.Problem if a
// setting differs from that of a running server.
func join(ctx context.Context, self *replica.Replica) error {
	err := self.Join(ctx)
	if d := (*replica.Differs)(nil); errors.As(err, &d) {
		return &setting.Problem{Setting: d.Setting,
			Why: fmt.Sprintf("it is %q here and %q on the server on %s, which uses the same database", d.Ours, d.Theirs, d.Host),
			Do:  "use the same value on all servers of a database, or stop the other server first (a killed server counts as running for 20 s)"}
	}
	return err
}

// sharedSettings are what the servers of one database compare.
func sharedSettings(ctx context.Context, cfg config.Config, db *postgres.DB, keys *sealed.Ring) (replica.Settings, error) {
	s := replica.Settings{
		DataDir: cfg.DataDir,
		Must: map[string]string{
			"CODEHUB_ARCHIVE_URL": archivePlace(cfg.Archives),
			"CODEHUB_RUNTIME":     cfg.Runtime,
			"CODEHUB_STORAGE":     cfg.Defaults.StorageBackend,
			// The leader ends identities of issuers that it does not know.
			"CODEHUB_OIDC_FILE (issuers and clients)": cfg.SignIn.Clients(),
		},
		Should: map[string]string{
			"CODEHUB_CA_FILE":                   authoritiesDigest(cfg.Authorities),
			"MAX_RUNNING_PER_USER":              strconv.Itoa(cfg.Limits.PerUser),
			"MAX_RUNNING_GLOBAL":                strconv.Itoa(cfg.Limits.Global),
			"CODEHUB_MAX_WORKSPACES_PER_USER":   strconv.Itoa(cfg.Limits.Workspaces),
			"CODEHUB_MAX_TOKENS_PER_USER":       strconv.Itoa(cfg.Limits.Tokens),
			"CODEHUB_MAX_BYTES_PER_USER":        strconv.FormatInt(cfg.Limits.Bytes, 10),
			"CODEHUB_MAX_BACKUP_BYTES_PER_USER": strconv.FormatInt(cfg.Limits.BackupBytes, 10),
			"CODEHUB_AUDIT_KEEP":                cfg.Audit.Keep.String(),
			"CODEHUB_USAGE_KEEP":                cfg.Usage.Keep.String(),
			"CODEHUB_SIZE_INTERVAL":             cfg.Usage.SizeInterval.String(),
			"TTL_STANDBY_SECONDS":               strconv.Itoa(cfg.Idle.StandbyTTL),
			"TTL_ARCHIVE_SECONDS":               strconv.Itoa(cfg.Idle.ArchiveTTL),
			"CODEHUB_KEEP_AWAKE_MAX":            cfg.Idle.KeepAwakeMax.String(),
			"CODEHUB_DELETE_GRACE":              cfg.Retention.DeleteGrace.String(),
			"CODEHUB_ARCHIVE_KEEP":              strconv.Itoa(cfg.Retention.Keep),
			"CODEHUB_GC_DELAY":                  cfg.Retention.Delay.String(),
			"CODEHUB_BACKUP_INTERVAL":           cfg.HomeBackups.Interval.String(),
			"CODEHUB_BACKUP_KEEP":               cfg.HomeBackups.Keep,
			"CODEHUB_BACKUP_DRILL_INTERVAL":     cfg.HomeBackups.Drill.String(),
			"CODEHUB_ORPHAN_DELAY":              cfg.Reconcile.OrphanDelay.String(),
			"CODEHUB_WORKSPACE_UIDS":            cfg.Reconcile.UIDs.String(),
			"CODEHUB_ALLOWED_IMAGES":            cfg.Defaults.Images.String(),
			"CODEHUB_SIZES":                     cfg.Defaults.OfferedSizes,
			"CODEHUB_WORKSPACE_DISK":            cfg.Defaults.Disk,
			"CODEHUB_REDIS_URL":                 redisPlace(cfg.RedisURL),
			"CODEHUB_OIDC_FILE (groups)":        cfg.SignIn.Groups(),
			"CODEHUB_OIDC_REFRESH_INTERVAL":     cfg.SignIn.Interval.String(),
			"CODEHUB_OIDC_OUTAGE":               cfg.SignIn.Grace.String(),
			"CODEHUB_GIT_FILE (apps)":           cfg.Git.Clients(),
			"CODEHUB_SECRET_KEY_FILE (keys)":    strings.Join(keys.Keys(), ", "),
			"CODEHUB_ARCHIVE_KEY_FILE (keys)":   strings.Join(cfg.Bucket.Keys.Recipients(), ", "),
			"CODEHUB_ENCRYPT_ARCHIVES":          strconv.FormatBool(cfg.Bucket.Encrypt),
			"CODEHUB_NO_PASSWORD_LOGIN":         strconv.FormatBool(cfg.Logins.NoPasswordLogin),
			"CODEHUB_REQUIRE_PASSKEY":           strconv.FormatBool(cfg.Logins.RequirePasskey),
		},
	}
	// Homes in folders are in the data folder. A server that keeps new homes in
	// volumes still needs the existing folders.
	inFolders, err := db.HasHomesIn(ctx, workspace.StorageLocalDir)
	if err != nil {
		return replica.Settings{}, fmt.Errorf("look for homes in folders: %w", err)
	}
	if inFolders || cfg.Defaults.StorageBackend == workspace.StorageLocalDir {
		dir := cfg.HostDataDir
		if dir == "" {
			dir = cfg.DataDir
		}
		s.Must["CODEHUB_DATA_DIR (homes are folders below it)"] = filepath.Clean(dir)
	}
	return s, nil
}

// authoritiesDigest is empty without authorities.
func authoritiesDigest(authorities []byte) string {
	if len(authorities) == 0 {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(authorities))
}

// archivePlace identifies the place of archives, without options of the connection.
func archivePlace(u *url.URL) string {
	place := url.URL{Scheme: u.Scheme, Host: u.Host, Path: path.Clean("/" + u.Path)}
	if endpoint := u.Query().Get("endpoint"); endpoint != "" {
		e, err := url.Parse(endpoint)
		if err == nil {
			endpoint = (&url.URL{Scheme: e.Scheme, Host: e.Host, Path: e.Path}).String()
		}
		place.RawQuery = url.Values{"endpoint": {endpoint}}.Encode()
	}
	return place.String()
}

// redisPlace identifies the Redis server, without credentials.
func redisPlace(raw string) string {
	if raw == "" {
		return ""
	}
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
