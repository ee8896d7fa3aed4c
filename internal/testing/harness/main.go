package harness

import (
	"flag"
	"runtime"
	"strconv"
)

// Parallel sets the number of tests that run in parallel, unless -parallel is
// set. TestMain calls it for tests that mostly wait, so that more of them run
// than there are cores.
func Parallel(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}
