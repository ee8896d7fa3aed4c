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
	// movedMaxAge is how old the list of moved workspaces may be before an unknown
	// ID makes it read again.
	movedMaxAge = 10 * time.Second
	// movedRetry is the pause after a failed read, and movedTimeout limits one
	// read.
	movedRetry   = time.Second
	movedTimeout = 5 * time.Second
)

// moves maps the IDs of codehub's first version to those that an import gave the
// workspaces, because bookmarks contain the old addresses. The map is small and
// final, so all of it is kept in memory.
//
// IDs are not secret, and the new address authorizes the visitor as usual. So the
// redirect needs no authentication and reveals nothing else.
type moves struct {
	load func(context.Context) (map[string]workspace.ID, error) // nil: no workspace has moved
	now  func() time.Time

	byOldID atomic.Pointer[map[string]workspace.ID] // nil before the first read

	mu     sync.Mutex
	readAt time.Time // when by was
	err    error     // of the last read
	errAt  time.Time // of that error
}

// lookup returns the workspace with the old ID from memory, or "".
func (m *moves) lookup(old string) workspace.ID {
	if by := m.byOldID.Load(); by != nil {
		return (*by)[old]
	}
	return ""
}

// find returns the workspace with the old ID, or "" if there is none.
func (m *moves) find(ctx context.Context, old string) (workspace.ID, error) {
	if id := m.lookup(old); id != "" {
		return id, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id := m.lookup(old); id != "" {
		return id, nil // another request has read it meanwhile
	}
	now := m.now()
	switch {
	case m.err != nil && now.Sub(m.errAt) < movedRetry:
		return "", m.err
	case m.err == nil && !m.readAt.IsZero() && now.Sub(m.readAt) < movedMaxAge:
		return "", nil
	}
	// Other requests wait for this read, so it continues if the client disconnects.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), movedTimeout)
	defer cancel()
	by, err := m.load(ctx)
	if m.err = err; err != nil {
		m.err, m.errAt = fmt.Errorf("read the moved workspaces: %w", err), m.now()
		return "", m.err
	}
	m.byOldID.Store(&by)
	m.readAt = m.now()
	return by[old], nil
}

// redirectMoved redirects a request for an old ID to the workspace's address, and
// reports whether the request was answered. It queries the database only for IDs
// that are invalid in this version.
func (p *Proxy) redirectMoved(w http.ResponseWriter, r *http.Request) bool {
	after, ok := strings.CutPrefix(rawPath(r), pathPrefix)
	if !ok || p.moves.load == nil {
		return false
	}
	old, rest := after, "/"
	if i := strings.IndexByte(after, '/'); i >= 0 {
		old, rest = after[:i], after[i:]
	}
	id := p.moves.lookup(old)
	if id == "" && oldID(old) {
		var err error
		if id, err = p.moves.find(r.Context(), old); err != nil {
			p.serverError(w, r, visit{navigation: isNavigation(r)}, "read moved workspaces failed", err)
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
	setOwnHeaders(w, http.StatusPermanentRedirect)
	w.Header().Set("Location", location)
	w.WriteHeader(http.StatusPermanentRedirect)
	return true
}

// oldID reports whether s can be an ID of the first version only.
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
