package bucket

import "sync"

// How many bytes of manifests are held for the requests of one user, and of all: this server reads a manifest as a
// whole, and one of millions of files has 100 MiB.
const (
	userManifests = 256 << 20
	allManifests  = 1 << 30
)

// budget counts the bytes of the manifests that are held.
type budget struct {
	mu  sync.Mutex
	by  map[string]int64 // of users who hold any
	all int64
}

// ReserveManifests reserves memory for manifests of this size that a request of the user reads, until release is
// called. ok is false while the user, or all users, hold too much; a user who holds none may have one of any size.
func (b *Bucket) ReserveManifests(user string, size int64) (release func(), ok bool) {
	if size == 0 {
		return func() {}, true
	}
	u := &b.manifests
	u.mu.Lock()
	defer u.mu.Unlock()
	held, holds := u.by[user]
	if holds && held+size > userManifests || u.all > 0 && u.all+size > allManifests {
		return nil, false
	}
	if u.by == nil {
		u.by = map[string]int64{}
	}
	u.by[user] += size
	u.all += size
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.all -= size
		if u.by[user] -= size; u.by[user] == 0 {
			delete(u.by, user)
		}
	}), true
}
