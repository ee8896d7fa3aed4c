package archive

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// Format names the format of archives and is in each .meta. This version does not
// read an archive of another format.
const Format = "home.tar.zst/1"

// HomeKey returns the key of the archive that an archiving operation of a
// workspace creates, below the installation's prefix.
func HomeKey(workspaceID, archiveOpID string) string {
	return workspaceID + "/" + archiveOpID + "/home.tar.zst"
}

// MetaKey returns the key of an archive's .meta.
func MetaKey(key string) string { return key + ".meta" }

// maxMeta is the maximum size of a .meta, in bytes.
const maxMeta = 64 << 10

// Meta is the content of a .meta object: the origin of its archive, from which a lost database
// can be rebuilt, and the figures that the archive must have when it is read back
// (docs/backup.md#archives).
type Meta struct {
	Format         string    `json:"format"`
	CodehubVersion string    `json:"codehub_version"`
	WorkspaceID    string    `json:"workspace_id"`
	WorkspaceName  string    `json:"workspace_name"`
	Owner          string    `json:"owner"` // username
	ArchiveOpID    string    `json:"archive_op_id"`
	CreatedAt      time.Time `json:"created_at"`
	Entries        int64     `json:"entries"`
	Bytes          int64     `json:"bytes"`
	Skipped        int64     `json:"skipped"` // sockets, FIFOs and devices that were not archived; absent: 0
	Size           int64     `json:"size"`
	SHA256         string    `json:"sha256"`
}

// Describe sets the format and the figures of an archive.
func (m *Meta) Describe(s Stats) {
	m.Format = Format
	m.Entries, m.Bytes, m.Skipped = s.Entries, s.Bytes, s.Skipped
	m.Size, m.SHA256 = s.Size, s.SHA256
}

// Encode returns the encoded .meta, or an error if a field is missing.
func (m *Meta) Encode() ([]byte, error) {
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("encode meta: %w", err)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode meta: %w", err)
	}
	return append(b, '\n'), nil
}

// ReadMeta reads a .meta to its end. Unknown fields are those of a newer version
// and ignored: a change to how an archive is read changes its format. Anything
// else that Encode would not write is ErrCorrupted, another format included. An
// error of r is returned unchanged.
func ReadMeta(r io.Reader) (*Meta, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxMeta+1))
	if err != nil {
		return nil, fmt.Errorf("read meta: %w", err)
	}
	if len(b) > maxMeta {
		return nil, corrupted("meta is larger than %d bytes", maxMeta)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	var m Meta
	if err := d.Decode(&m); err != nil {
		return nil, corrupted("meta: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, corrupted("meta: unexpected data after the end")
	}
	if err := m.validate(); err != nil {
		return nil, corrupted("meta: %w", err)
	}
	return &m, nil
}

func (m *Meta) validate() error {
	if m.Format != Format {
		return fmt.Errorf("format is %.40q, and this version of codehub reads %q; a newer version may read it", m.Format, Format)
	}
	for _, f := range []struct{ name, value string }{
		{"codehub_version", m.CodehubVersion}, {"workspace_id", m.WorkspaceID},
		{"workspace_name", m.WorkspaceName}, {"owner", m.Owner}, {"archive_op_id", m.ArchiveOpID},
	} {
		if f.value == "" {
			return fmt.Errorf("%s is missing", f.name)
		}
	}
	if m.CreatedAt.IsZero() {
		return errors.New("created_at is missing")
	}
	if m.Entries < 0 || m.Bytes < 0 || m.Skipped < 0 || m.Size <= 0 {
		return errors.New("a figure is out of range")
	}
	if sum, err := hex.DecodeString(m.SHA256); err != nil || len(sum) != 32 || hex.EncodeToString(sum) != m.SHA256 {
		return errors.New("sha256 is invalid")
	}
	return nil
}

// matches compares an archive that was read with its .meta.
func (m *Meta) matches(s Stats) error {
	switch {
	case s.Size != m.Size:
		return corrupted("%d bytes, want %d", s.Size, m.Size)
	case s.SHA256 != m.SHA256:
		return corrupted("sha256 is %s, want %s", s.SHA256, m.SHA256)
	case s.Entries != m.Entries:
		return corrupted("%d entries, want %d", s.Entries, m.Entries)
	case s.Bytes != m.Bytes:
		return corrupted("%d bytes of content, want %d", s.Bytes, m.Bytes)
	}
	return nil
}
