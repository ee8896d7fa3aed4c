package archive

import "time"

// Stats says what an archive holds. Pack, Unpack and Verify count alike, so
// that their figures can be compared.
type Stats struct {
	// Entries is the number of entries in the tar, the home itself included.
	Entries int64 `json:"entries"`
	// Files is how many of them are regular files (further hard links to one
	// are entries, but not files).
	Files int64 `json:"files"`
	// Bytes is the content of the files; holes do not count.
	Bytes int64 `json:"bytes"`
	// Skipped is how many FIFOs, sockets and devices were left out by Pack.
	Skipped int64 `json:"skipped,omitempty"`
	// Size and SHA256 (in hex) are those of the compressed archive.
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	// Fingerprint stands for what Pack saw of the home: the path, kind, mode,
	// owner, size, inode, mtime and ctime of every entry, the skipped ones
	// included. A home of which Fingerprint returns the same has not changed
	// since. Unpack and Verify leave it empty.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Progress is told how much is done: bytes of content and entries, both only
// growing. It is called a few times a second and once at the end, from one
// goroutine, and should return at once.
type Progress func(bytes, entries int64)

// progressEvery is how often Progress is called at most.
const progressEvery = 200 * time.Millisecond

// meter counts what is done and tells of it now and then.
type meter struct {
	Stats
	report Progress
	last   time.Time
	units  int // entries and reads since the clock was last looked at
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
