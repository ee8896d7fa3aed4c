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
	Other  Kind = iota // not codehub's
	Home               // home.tar.zst
	Meta               // its .meta
	Marker             // codehub.json
	Backup             // of the database
)

// Key is a parsed key.
type Key struct {
	Installation string
	Workspace    string // empty unless Home or Meta
	OpID         string // archive_op_id; empty unless Home or Meta
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
	if len(parts) == 3 && parts[1] == backupFolder && strings.HasSuffix(parts[2], backupSuffix) {
		return Key{Installation: parts[0], Kind: Backup}
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

func parseArchive(key string) (Key, error) {
	k := ParseKey(key)
	if k.Kind != Home {
		return Key{}, fmt.Errorf("invalid archive key %.200q", key)
	}
	return k, nil
}
