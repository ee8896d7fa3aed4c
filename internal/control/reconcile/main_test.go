package reconcile_test

import (
	"testing"

	"codehub/internal/testing/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
