package bucket

import (
	"fmt"
	"strings"

	"codehub/internal/archive"
	"codehub/internal/workspace"
)

// Kind is the kind of an object, by its key.
type Kind int

const (
	Other        Kind = iota // not codehub's
	Home                     // home.tar.zst
	Meta                     // its .meta
	Marker                   // codehub.json
	Backup                   // of the database
	Manifest                 // of a backup of a home
	Pack                     // of backups of a home
	Keys                     // keys.age, by which the keys of workspaces are encrypted
	WorkspaceKey             // of a workspace
)

// Key is a parsed key.
type Key struct {
	Installation string
	Workspace    string // empty unless Home, Meta, Manifest, Pack or WorkspaceKey
	OpID         string // archive_op_id of a Home or Meta; id of the backup of a Manifest; otherwise empty
	Kind         Kind
}

// Archive returns the archive_key of a Home or Meta.
func (k Key) Archive() string {
	return k.Installation + "/" + archive.HomeKey(k.Workspace, k.OpID)
}

// ParseKey parses a key. A key that codehub does not write is Other.
func ParseKey(key string) Key {
	parts := strings.Split(key, "/")
	if !workspace.ValidID(parts[0]) {
		return Key{}
	}
	if len(parts) == 2 && parts[1] == markerName {
		return Key{Installation: parts[0], Kind: Marker}
	}
	if len(parts) == 2 && parts[1] == keysName {
		return Key{Installation: parts[0], Kind: Keys}
	}
	if len(parts) == 4 && workspace.ValidID(parts[1]) && parts[2] == keyFolder && strings.HasPrefix(parts[3], "age1") && strings.HasSuffix(parts[3], keySuffix) {
		return Key{Installation: parts[0], Workspace: parts[1], Kind: WorkspaceKey}
	}
	if len(parts) == 3 && parts[1] == backupFolder && strings.HasSuffix(parts[2], backupSuffix) {
		return Key{Installation: parts[0], Kind: Backup}
	}
	if len(parts) > 3 && workspace.ValidID(parts[1]) && parts[2] == homeBackupFolder {
		return parseHomeBackup(parts)
	}
	if len(parts) != 4 || !workspace.ValidID(parts[1]) || !workspace.ValidID(parts[2]) {
		return Key{Installation: parts[0]}
	}
	k := Key{parts[0], parts[1], parts[2], Home}
	switch key {
	case k.Archive():
		return k
	case archive.MetaKey(k.Archive()):
		k.Kind = Meta
		return k
	}
	return Key{Installation: parts[0]}
}

const homeBackupFolder = "backups"

// parseHomeBackup parses a key in the folder of a workspace's backups.
func parseHomeBackup(parts []string) Key {
	name := strings.Join(parts[3:], "/")
	if archive.IsPack(name) {
		return Key{Installation: parts[0], Workspace: parts[1], Kind: Pack}
	}
	if at, is := archive.IsManifest(name); is && !at.IsZero() {
		_, rest, _ := strings.Cut(archive.Generation(name), "-")
		id, _, _ := strings.Cut(rest, ".") // see RewrittenKey
		if workspace.ValidID(id) && name == archive.ManifestName(at, rest) {
			return Key{parts[0], parts[1], id, Manifest}
		}
	}
	return Key{Installation: parts[0]}
}

func parseArchive(key string) (Key, error) {
	k := ParseKey(key)
	if k.Kind != Home {
		return Key{}, fmt.Errorf("invalid archive key %.200q", key)
	}
	return k, nil
}
