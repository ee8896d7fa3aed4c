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

// Format names how archives are made, and is in each .meta. One with another
// format is not for this version to read.
const Format = "home.tar.zst/1"

// HomeKey is the key of the archive that an archiving operation of a workspace
// makes (design §3.7).
func HomeKey(workspaceID, archiveOpID string) string {
	return workspaceID + "/" + archiveOpID + "/home.tar.zst"
}

// MetaKey is the key of the .meta of an archive.
func MetaKey(key string) string { return key + ".meta" }

// maxMeta is how large a .meta may be.
const maxMeta = 64 << 10

// Meta is the content of a .meta object: what the archive beside it is of, so
// that a lost database can be rebuilt from a bucket, and what it must read back
// as (design §11).
type Meta struct {
	Format         string    `json:"format"`
	CodehubVersion string    `json:"codehub_version"`
	WorkspaceID    string    `json:"workspace_id"`
	WorkspaceName  string    `json:"workspace_name"`
	Owner          string    `json:"owner"` // the name that they log in with
	ArchiveOpID    string    `json:"archive_op_id"`
	CreatedAt      time.Time `json:"created_at"`
	Entries        int64     `json:"entries"`
	Bytes          int64     `json:"bytes"`
	Skipped        int64     `json:"skipped"`
	Size           int64     `json:"size"`
	SHA256         string    `json:"sha256"`
}

// Describe fills in what the packing counted.
func (m *Meta) Describe(s Stats) {
	m.Format = Format
	m.Entries, m.Bytes, m.Skipped = s.Entries, s.Bytes, s.Skipped
	m.Size, m.SHA256 = s.Size, s.SHA256
}

// Encode returns the .meta, or why it is not complete.
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

// ReadMeta reads a .meta to its end. Fields that this version does not know are
// a newer one's, and passed over: what changes how an archive is read changes
// its format. Anything else that Encode would not have written is ErrCorrupted,
// another format as well; an error of r itself is returned as it is.
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
		return nil, corrupted("meta: more follows after it")
	}
	if err := m.validate(); err != nil {
		return nil, corrupted("meta: %w", err)
	}
	return &m, nil
}

func (m *Meta) validate() error {
	if m.Format != Format {
		return fmt.Errorf("its format is %.40q, and this version of codehub reads %q: a newer version may read it", m.Format, Format)
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
		return errors.New("sha256 is none")
	}
	return nil
}

// matches compares an archive that was read with what it must be.
func (m *Meta) matches(s Stats) error {
	switch {
	case s.Size != m.Size:
		return corrupted("it is %d bytes, not %d", s.Size, m.Size)
	case s.SHA256 != m.SHA256:
		return corrupted("its sha256 is %s, not %s", s.SHA256, m.SHA256)
	case s.Entries != m.Entries:
		return corrupted("it has %d entries, not %d", s.Entries, m.Entries)
	case s.Bytes != m.Bytes:
		return corrupted("it holds %d bytes, not %d", s.Bytes, m.Bytes)
	}
	return nil
}
