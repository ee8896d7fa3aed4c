package harness

import (
	"flag"
	"runtime"
	"strconv"
)

// Parallel sets how many parallel tests run at once, unless the command line
// says so. TestMain calls it where tests wait most of the time, so that more of
// them can run at once than there are cores.
func Parallel(n int) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(max(n, runtime.GOMAXPROCS(0))))
	}
}
