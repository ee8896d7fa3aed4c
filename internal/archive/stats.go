package archive

import "time"

// Stats has the figures of an archive. Pack, Unpack and Verify count in the
// same way, so their figures can be compared.
type Stats struct {
	// Entries is the number of entries in the tar, the home itself included.
	Entries int64 `json:"entries"`
	// Files is the number of regular files among them (further hard links are
	// entries, not files).
	Files int64 `json:"files"`
	// Bytes is the content of the files without holes.
	Bytes int64 `json:"bytes"`
	// Skipped is the number of sockets, FIFOs and devices, which Pack does not
	// archive.
	Skipped int64 `json:"skipped,omitempty"`
	// Size and SHA256 (in hex) are those of the compressed archive.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Fingerprint is a hash of the path, kind, mode, owner, size, inode, mtime
	// and ctime of every entry, skipped ones included. If Fingerprint returns
	// the same for a home, it has not changed since Pack. Unpack and Verify
	// leave it empty.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Progress receives the bytes of content and the entries so far, both never
// decreasing. It is called a few times a second and once at the end, from one
// goroutine, and should return at once.
type Progress func(bytes, entries int64)

// progressEvery is the shortest time between two calls of Progress.
const progressEvery = 200 * time.Millisecond

// meter counts bytes and entries and reports them periodically.
type meter struct {
	Stats
	report Progress
	last   time.Time
	units  int // entries and reads since the clock was last read
}

// tick is called for every entry and every chunk of content.
func (m *meter) tick() {
	if m.report == nil {
		return
	}
	if m.units++; m.units < 32 {
		return
	}
	m.units = 0
	if now := time.Now(); now.Sub(m.last) >= progressEvery {
		m.last = now
		m.report(m.Bytes, m.Entries)
	}
}

func (m *meter) done() {
	if m.report != nil {
		m.report(m.Bytes, m.Entries)
	}
}
