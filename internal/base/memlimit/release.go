package memlimit

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// releaseInterval is how often Release looks, and worthRelease how much it must be able to
// return.
const (
	releaseInterval = 20 * time.Second
	worthRelease    = 16 << 20
)

// Release returns memory to the system that a quiet server no longer uses, until ctx ends.
// Go itself keeps it: because of the floor it collects garbage after 128 MiB or 2 min, and
// it returns what exceeds twice the heap, floor included.
func Release(ctx context.Context) {
	tick := time.NewTicker(releaseInterval)
	defer tick.Stop()
	var u usage
	u.next()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if u.next() {
				debug.FreeOSMemory()
				u.next()
			}
		}
	}
}

// usage is what Release knows of the heap.
type usage struct{ cycles uint64 } // garbage collections so far

// next reads the heap, and reports whether returning memory is worth a garbage collection.
func (u *usage) next() bool {
	s := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(s)
	return u.worth(s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64(), s[3].Value.Uint64())
}

// worth reports whether no collection has begun since the last call, and enough memory is
// free or was allocated since the last collection, which found the live bytes.
func (u *usage) worth(cycles, live, objects, free uint64) bool {
	if cycles != u.cycles {
		u.cycles = cycles
		return false
	}
	return objects+free >= live+worthRelease
}
