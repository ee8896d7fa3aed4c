package proxy

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"codehub/internal/workspace"
)

const (
	// unsavedFor is how long a report of an IDE's page counts: pages repeat it while they
	// are open.
	unsavedFor = 90 * time.Second
	// unsavedAgain is how often a repeated report is announced to the other servers. With
	// the interval of the pages it stays well below unsavedFor.
	unsavedAgain = 30 * time.Second
	// maxUnsavedPages limits the pages of a workspace that are remembered.
	maxUnsavedPages = 16
	// maxUnsavedFiles limits what one page may report.
	maxUnsavedFiles = 9999
	// announcePause is the time between two announcements, and maxAnnounced limits the
	// reports in one.
	announcePause = time.Second
	maxAnnounced  = 500
)

// Unsaved remembers how many files the open pages of each workspace have not saved. A page
// reports it to one server; Run announces it to the others. A lost announcement is repeated
// or expires, so at worst a stop is not asked about. It is safe for concurrent use.
type Unsaved struct {
	now  func() time.Time
	self string        // names this server in its announcements
	due  chan struct{} // holds a value when there is something to announce

	mu sync.Mutex
	by map[workspace.ID]map[string]*unsavedPage
}

// unsavedPage is what a page has reported. One without unsaved files is kept until that is
// announced, so that the limit of pages also limits the announcements.
type unsavedPage struct {
	files     int
	until     time.Time
	announced time.Time // when the other servers learned of it, or this one from them
	due       bool      // it is to be announced
}

// announcement is a report of a page, as sent to the other servers.
type announcement struct {
	From  string       `json:"from"`
	ID    workspace.ID `json:"id"`
	Page  string       `json:"page"`
	Files int          `json:"files"`
}

// NewUnsaved returns an empty Unsaved. now is the clock.
func NewUnsaved(now func() time.Time) *Unsaved {
	return &Unsaved{now: now, self: rand.Text(), due: make(chan struct{}, 1), by: map[workspace.ID]map[string]*unsavedPage{}}
}

// Report sets the number of unsaved files of one page. A nil Unsaved ignores it.
func (u *Unsaved) Report(id workspace.ID, page string, files int) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p, changed := u.set(id, page, files); p != nil && (changed || u.now().Sub(p.announced) >= unsavedAgain) {
		u.announce(p)
	}
}

// Close forgets the pages of a workspace whose IDE has ended: they load it again. A nil
// Unsaved ignores it.
func (u *Unsaved) Close(id workspace.ID) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, p := range u.by[id] {
		if p.files > 0 {
			p.files = 0
			u.announce(p)
		}
	}
}

// Receive handles an announcement of another server.
func (u *Unsaved) Receive(payload string) {
	var a announcement
	if json.Unmarshal([]byte(payload), &a) != nil || a.From == u.self || !workspace.ValidID(string(a.ID)) {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if p, _ := u.set(a.ID, a.Page, a.Files); p != nil {
		p.announced, p.due = u.now(), false
		if p.files == 0 {
			u.drop(a.ID, a.Page)
		}
	}
}

// set requires the lock. It returns nil if nothing is known of the page, and nothing has to
// be.
func (u *Unsaved) set(id workspace.ID, page string, files int) (p *unsavedPage, changed bool) {
	u.expire(id)
	files = max(0, min(files, maxUnsavedFiles))
	p = u.by[id][page]
	if p == nil {
		if files == 0 || len(page) > 64 || len(u.by[id]) >= maxUnsavedPages {
			return nil, false
		}
		if u.by[id] == nil {
			u.by[id] = map[string]*unsavedPage{}
		}
		p = &unsavedPage{}
		u.by[id][page] = p
	}
	changed = p.files != files
	p.files, p.until = files, u.now().Add(unsavedFor)
	return p, changed
}

func (u *Unsaved) announce(p *unsavedPage) {
	p.due = true
	select {
	case u.due <- struct{}{}:
	default:
	}
}

// Run announces the reports of this server's pages until ctx ends. send passes payloads to
// the other servers, which call Receive; passing them to this one as well does no harm.
func (u *Unsaved) Run(ctx context.Context, log *slog.Logger, send func(ctx context.Context, payloads []string) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.due:
		}
		if due := u.takeDue(); len(due) > 0 {
			payloads := make([]string, len(due))
			for i, a := range due {
				payload, err := json.Marshal(a)
				if err != nil {
					return err
				}
				payloads[i] = string(payload)
			}
			if err := send(ctx, payloads); err != nil {
				if ctx.Err() == nil {
					log.DebugContext(ctx, "announce unsaved files failed", "err", err)
				}
				u.retry(due)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(announcePause):
		}
	}
}

// takeDue returns what is to be announced, at most maxAnnounced.
func (u *Unsaved) takeDue() (due []announcement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, pages := range u.by {
		for page, p := range pages {
			if !p.due {
				continue
			}
			if len(due) == maxAnnounced {
				u.announce(p) // in the next round
				return due
			}
			p.due, p.announced = false, u.now()
			due = append(due, announcement{u.self, id, page, p.files})
			if p.files == 0 {
				u.drop(id, page)
			}
		}
	}
	return due
}

// retry announces pages again whose unsaved files could not be announced. Those without any
// are not: on the other servers their reports expire.
func (u *Unsaved) retry(failed []announcement) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range failed {
		if p := u.by[a.ID][a.Page]; p != nil {
			u.announce(p)
		}
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
	for page, p := range u.by[id] {
		if !u.now().Before(p.until) {
			u.drop(id, page)
		}
	}
}

func (u *Unsaved) drop(id workspace.ID, page string) {
	delete(u.by[id], page)
	if len(u.by[id]) == 0 {
		delete(u.by, id)
	}
}
