package server

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"codehub/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"codehub": func() {
		var commands struct {
			Serve Command `cmd:""`
		}
		os.Exit(cli.Main(&commands, "test", os.Args[1:]))
	}})
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
