package reconcile_test

import (
	"testing"

	"codehub/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
