package harness

import (
	"flag"
	"runtime"
	"strconv"
	"testing"
)

// Parallel sets the number of tests that run in parallel, unless -parallel is
// set. TestMain calls it for tests that mostly wait, so that more of them run
// than there are cores. With -short it is AtOnce(n).
func Parallel(n int) {
	flag.Parse()
	n = AtOnce(n)
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}

// AtOnce returns how many of n things tests do at once: about three quarters with
// -short, which says that the machine is slow, so that they wait less. The flags
// must have been parsed.
func AtOnce(n int) int {
	if testing.Short() {
		return (3*n + 1) / 4
	}
	return n
}
