package postgres_test

import (
	"flag"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

func TestMain(m *testing.M) {
	if !harness.Verifying() {
		if err := flag.Set("rapid.checks", "25"); err != nil {
			panic(err)
		}
	}
	pgtest.Main(m)
}

func newDSN(t testing.TB) string { return pgtest.New(t, postgres.Migrate) }

func emptyDSN(t testing.TB) string { return pgtest.New(t, nil) }
