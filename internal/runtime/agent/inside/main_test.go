package inside

import (
	"os"
	"testing"

	"codehub/internal/testing/harness"
)

func TestMain(m *testing.M) {
	harness.HeedSignals()
	os.Exit(m.Run())
}
