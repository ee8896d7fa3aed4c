package proxy

import (
	"os"
	"testing"

	"codehub/internal/testing/harness"
)

// The tests with the real IDE mostly wait.
func TestMain(m *testing.M) {
	harness.Parallel(4)
	os.Exit(m.Run())
}
