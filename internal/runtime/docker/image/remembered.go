package image

import "sync"

// maxRemembered is how many values of one kind are kept. Users choose the images, and one takes
// up to a few MB.
const maxRemembered = 32

// remembered keeps what was read of the last images. The zero value is ready.
type remembered[K comparable, V any] struct {
	mu     sync.Mutex
	values map[K]V
}

// get returns the value of key; false: it is not kept.
func (r *remembered[K, V]) get(key K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.values[key]
	return v, ok
}

// put keeps a value. Once there are too many, it drops the others: they are read again.
func (r *remembered[K, V]) put(key K, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.values == nil || len(r.values) >= maxRemembered {
		r.values = map[K]V{}
	}
	r.values[key] = v
}
