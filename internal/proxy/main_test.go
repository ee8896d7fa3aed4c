package proxy

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// The tests with the real IDE wait for minutes, mostly for nothing to happen:
// more of them at once than there are cores.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = f.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0)))
	}
	os.Exit(m.Run())
}
