package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/workspace"
)

// A URL may have parameters of the pool, which the server would reject.
func TestConnConfigLeavesOutThePoolsParameters(t *testing.T) {
	t.Parallel()
	cfg, err := ConnConfig("postgres://u@localhost/db?pool_max_conns=7&sslmode=disable", "codehub-test")
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := cfg.RuntimeParams["pool_max_conns"]; ok {
		t.Errorf("pool_max_conns=%s would be sent to the server", v)
	}
	if cfg.RuntimeParams["application_name"] != "codehub-test" {
		t.Errorf("parameters: %v", cfg.RuntimeParams)
	}
}

// A full disk or too little memory is transient, and not the fault of the request.
func TestFullDiskIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"53100", "53200", "53300"} {
		if err := failed("write", &pgconn.PgError{Code: state}); workspace.CodeOf(err) != workspace.CodeUnavailable {
			t.Errorf("%s: %v", state, err)
		}
	}
}
