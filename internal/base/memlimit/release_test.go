package memlimit

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	u := usage{}
	for i, step := range []struct {
		cycles, live, objects, free uint64
		worth                       bool
	}{
		{1, 20 * mib, 20 * mib, 40 * mib, false}, // garbage was collected: the server is not quiet
		{1, 20 * mib, 21 * mib, 14 * mib, false}, // too little
		{1, 20 * mib, 21 * mib, 15 * mib, true},  // memory is free
		{1, 20 * mib, 36 * mib, 0, true},         // or was allocated, and is perhaps garbage now
		{2, 90 * mib, 90 * mib, 90 * mib, false}, // the server is busy again
		{2, 90 * mib, 80 * mib, 20 * mib, false}, // the collection found more than there is now
	} {
		if got := u.worth(step.cycles, step.live, step.objects, step.free); got != step.worth {
			t.Errorf("step %d: worth %v, want %v", i, got, step.worth)
		}
	}
}

// What a quiet process has allocated and no longer uses is worth returning, once. Go collects
// nothing by itself meanwhile: how often it does depends on what else the machine runs.
func TestNext(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	var u usage
	u.next()
	garbage := make([]byte, 2*worthRelease)
	clear(garbage)
	if !u.next() {
		t.Error("garbage is not worth returning")
	}
	debug.FreeOSMemory()
	if u.next() {
		t.Error("a collection has just begun")
	}
	if u.next() {
		t.Error("there is still something to return")
	}
}
