package proxy

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"codehub/internal/workspace"
)

const (
	// movedAge is how old what is known of moved workspaces may be before an
	// address that leads nowhere has it read again.
	movedAge = 10 * time.Second
	// movedPause is after how long a read that failed is tried again, and
	// movedWait how long one may take.
	movedPause = time.Second
	movedWait  = 5 * time.Second
)

// moves knows the workspaces that once had another id: those that import-m1
// brought over, whose old addresses are in bookmarks (design §5). They are few
// and never change, so all of them are kept.
//
// An id is no secret, and at the new address the same is asked of a visitor as
// of everybody. So the old one leads there whoever asks, and tells nobody
// anything about the workspace.
type moves struct {
	load func(context.Context) (map[string]workspace.ID, error) // nil: nothing has moved
	now  func() time.Time

	by atomic.Pointer[map[string]workspace.ID] // nil before the first read

	mu   sync.Mutex
	read time.Time // when by was
	err  error     // of the last read
	at   time.Time // of that error
}

// known returns the workspace that had the id old, as far as has been read.
func (m *moves) known(old string) workspace.ID {
	if by := m.by.Load(); by != nil {
		return (*by)[old]
	}
	return ""
}

// find returns the workspace that had the id old, or "" if none had.
func (m *moves) find(ctx context.Context, old string) (workspace.ID, error) {
	if id := m.known(old); id != "" {
		return id, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := m.known(old); id != "" {
		return id, nil // another one has read it meanwhile
	}
	now := m.now()
	switch {
	case m.err != nil && now.Sub(m.at) < movedPause:
		return "", m.err
	case m.err == nil && !m.read.IsZero() && now.Sub(m.read) < movedAge:
		return "", nil
	}
	// The visitor may leave meanwhile; others wait for the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), movedWait)
	defer cancel()
	by, err := m.load(ctx)
	if m.err = err; err != nil {
		m.err, m.at = fmt.Errorf("read the workspaces that have moved: %w", err), m.now()
		return "", m.err
	}
	m.by.Store(&by)
	m.read = m.now()
	return by[old], nil
}

// redirectMoved sends a request for an old id on to the workspace's address,
// and reports whether the request has been answered. The database is only ever
// asked about what can be no id of this version.
func (p *Proxy) redirectMoved(w http.ResponseWriter, r *http.Request) bool {
	after, ok := strings.CutPrefix(rawPath(r), pathPrefix)
	if !ok || p.moves.load == nil {
		return false
	}
	old, rest := after, "/"
	if i := strings.IndexByte(after, '/'); i >= 0 {
		old, rest = after[:i], after[i:]
	}
	id := p.moves.known(old)
	if id == "" && oldID(old) {
		var err error
		if id, err = p.moves.find(r.Context(), old); err != nil {
			p.fault(w, r, visit{navigation: isNavigation(r)}, "look for a moved workspace", err)
			return true
		}
	}
	if id == "" {
		return false
	}
	location := pathPrefix + string(id) + escapeStray(rest)
	if r.URL.RawQuery != "" {
		location += "?" + r.URL.RawQuery
	}
	own(w, http.StatusPermanentRedirect)
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusPermanentRedirect)
	return true
}

// oldID reports whether s can be an id of the first version and of none since.
func oldID(s string) bool {
	if s == "" || len(s) > 64 || workspace.ValidID(s) {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
