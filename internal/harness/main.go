package harness

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// Parallel sets the number of tests that run in parallel, unless -parallel is
// set. TestMain calls it for tests that mostly wait, so that more of them run
// than there are cores. With -short, which says that the machine is slow, they
// wait less, so that about three quarters of them run.
func Parallel(n int) {
	flag.Parse()
	if testing.Short() {
		n = (3*n + 1) / 4
	}
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}
