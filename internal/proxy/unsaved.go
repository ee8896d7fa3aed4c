package proxy

import (
	"sync"
	"time"

	"codehub/internal/workspace"
)

const (
	// unsavedFor is how long a report of an IDE's page counts: pages repeat it while they
	// are open.
	unsavedFor = 90 * time.Second
	// maxUnsavedPages limits the pages of a workspace that are remembered.
	maxUnsavedPages = 16
	// maxUnsavedFiles limits what one page may report.
	maxUnsavedFiles = 9999
)

// Unsaved remembers how many files the open pages of each workspace have not saved. The
// pages report it to one server, and only that one knows it. It is safe for concurrent use.
type Unsaved struct {
	now func() time.Time

	mu sync.Mutex
	by map[workspace.ID]map[string]unsavedPage
}

type unsavedPage struct {
	files int
	until time.Time
}

// NewUnsaved returns an empty Unsaved. now is the clock.
func NewUnsaved(now func() time.Time) *Unsaved {
	return &Unsaved{now: now, by: map[workspace.ID]map[string]unsavedPage{}}
}

// Report sets the number of unsaved files of one page. A nil Unsaved ignores it.
func (u *Unsaved) Report(id workspace.ID, page string, files int) {
	if u == nil || len(page) > 64 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(id)
	pages := u.by[id]
	if files <= 0 {
		delete(pages, page)
		if len(pages) == 0 {
			delete(u.by, id)
		}
		return
	}
	if pages == nil {
		pages = map[string]unsavedPage{}
		u.by[id] = pages
	}
	if _, known := pages[page]; known || len(pages) < maxUnsavedPages {
		pages[page] = unsavedPage{files: min(files, maxUnsavedFiles), until: u.now().Add(unsavedFor)}
	}
}

// Files returns how many files of a workspace are not saved.
func (u *Unsaved) Files(id workspace.ID) int {
	if u == nil {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.expire(id)
	n := 0
	for _, p := range u.by[id] {
		n += p.files
	}
	return n
}

// Forget drops all reports that have expired.
func (u *Unsaved) Forget() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for id := range u.by {
		u.expire(id)
	}
}

func (u *Unsaved) expire(id workspace.ID) {
	pages := u.by[id]
	for name, p := range pages {
		if !u.now().Before(p.until) {
			delete(pages, name)
		}
	}
	if len(pages) == 0 {
		delete(u.by, id)
	}
}
