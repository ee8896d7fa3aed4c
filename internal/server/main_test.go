package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"codehub/internal/cli"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "codehub" {
		harness.Parallel(4) // the tests mostly wait for servers
	}
	testscript.Main(m, map[string]func(){"codehub": func() {
		var commands struct {
			Serve Command `cmd:""`
		}
		os.Exit(cli.Main(&commands, "test", os.Args[1:]))
	}})
}

// twoServers returns two servers with one database and one bucket, without Docker, which are
// not started yet. setting returns a further setting of each.
func twoServers(t *testing.T, database *fixture.Database, setting func(i int) string) (servers [2]*proc.Server) {
	t.Helper()
	binary, err := exec.LookPath("codehub")
	try(t, err)
	archives := "file://" + t.TempDir()
	for i := range servers {
		dir := t.TempDir()
		servers[i], err = proc.New(proc.Options{Binary: binary, DataDir: filepath.Join(dir, "data"), Env: []string{
			"CODEHUB_DATABASE_URL=" + database.DSN, "CODEHUB_ARCHIVE_URL=" + archives, "DOCKER_HOST=unix://" + filepath.Join(dir, "no-docker"), setting(i)}})
		try(t, err)
		t.Cleanup(servers[i].Close)
	}
	return servers
}

func try(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
