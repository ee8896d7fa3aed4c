package postgres_test

import (
	"testing"

	"codehub/internal/pgtest"
	"codehub/internal/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func newDSN(t testing.TB) string { return pgtest.New(t, postgres.Migrate) }

func emptyDSN(t testing.TB) string { return pgtest.New(t, nil) }
