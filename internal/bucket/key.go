package bucket

import (
	"fmt"
	"strings"

	"codehub/internal/archive"
	"codehub/internal/workspace"
)

// Kind is what an object is, by its key.
type Kind int

const (
	Other  Kind = iota // nothing of codehub's
	Home               // home.tar.zst
	Meta               // its .meta
	Marker             // codehub.json
)

// Key is a key taken apart.
type Key struct {
	Installation string
	Workspace    string // empty unless Home or Meta
	OpID         string // archive_op_id; likewise
	Kind         Kind
}

// Archive is the key of the archive that a Home or Meta is of: the archive_key.
func (k Key) Archive() string {
	return k.Installation + "/" + archive.HomeKey(k.Workspace, k.OpID)
}

// ParseKey takes a key apart. Whatever is not just as codehub writes it is Other.
func ParseKey(key string) Key {
	parts := strings.Split(key, "/")
	if !workspace.ValidID(parts[0]) {
		return Key{}
	}
	if len(parts) == 2 && parts[1] == markerName {
		return Key{Installation: parts[0], Kind: Marker}
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
