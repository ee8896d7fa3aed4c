package auth

import (
	"sync"
	"time"
)

const (
	// cacheTTL is how long an entry may be used without an event that renews or
	// ends it.
	cacheTTL  = 60 * time.Second
	maxCached = 20_000
)

// cache remembers the users of sessions and tokens. It does not remember invalid
// credentials, of which there is no limited number.
type cache struct {
	max int
	by  sync.Map // of cached by secretHash; written with mu locked

	mu  sync.Mutex
	gen uint64
	n   int // entries of by
}

type cached struct {
	id    Identity
	until time.Time
}

func newCache(max int) *cache { return &cache{max: max} }

// get takes no lock.
func (c *cache) get(h secretHash, now time.Time) (Identity, bool) {
	v, ok := c.by.Load(h)
	if !ok {
		return Identity{}, false
	}
	e := v.(cached)
	return e.id, now.Before(e.until)
}

func (c *cache) generation() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// put adds an entry unless an invalidation has occurred since generation seen.
func (c *cache) put(h secretHash, id Identity, now time.Time, seen uint64) {
	until := now.Add(cacheTTL)
	if !id.Expires.IsZero() && id.Expires.Before(until) {
		until = id.Expires
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gen != seen {
		return
	}
	if c.n >= c.max {
		c.evict(now)
	}
	if _, replaced := c.by.Swap(h, cached{id: id, until: until}); !replaced {
		c.n++
	}
}

// evict removes the expired entries, or else an eighth of all.
func (c *cache) evict(now time.Time) {
	c.remove(func(_ secretHash, e cached) bool { return !now.Before(e.until) })
	c.remove(func(secretHash, cached) bool { return c.n >= c.max-c.max/8 })
}

func (c *cache) remove(match func(secretHash, cached) bool) {
	c.by.Range(func(k, v any) bool {
		if match(k.(secretHash), v.(cached)) {
			c.by.Delete(k)
			c.n--
		}
		return true
	})
}

func (c *cache) drop(match func(secretHash, Identity) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	c.remove(func(h secretHash, e cached) bool { return match(h, e.id) })
}

// Invalidate handles the event auth_changed. It drops a session or token (hex, as
// in Caller.Session) from the cache or, if session is empty, all of the user's, and
// revalidates the watched sessions.
func (a *Auth) Invalidate(user, session string) {
	if h, ok := decodeSession(session); ok {
		// The sessions of workspaces' hosts end with theirs.
		a.cache.drop(func(k secretHash, id Identity) bool { return k == h || id.login == session })
	} else {
		a.cache.drop(func(_ secretHash, id Identity) bool { return id.Caller.UserID == user })
	}
	a.watches.revalidateSoon()
}

// InvalidateAll drops all entries, for use when events may have been lost.
func (a *Auth) InvalidateAll() {
	a.cache.drop(func(secretHash, Identity) bool { return true })
	a.watches.revalidateSoon()
}
