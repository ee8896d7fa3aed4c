package maintenance

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"codehub/internal/testing/harness"
	"codehub/internal/testing/pgtest"
)

func TestImportM1(t *testing.T) {
	t.Parallel()
	harness.NeedsDocker(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			from := pgtest.New(env.T().(testing.TB), nil)
			conn, err := pgx.Connect(context.Background(), from)
			if err != nil {
				return err
			}
			defer conn.Close(context.Background())
			for _, name := range []string{"m1_schema.sql", "m1_rows.sql"} {
				sql, err := os.ReadFile(filepath.Join("..", "..", "arrivals", "importm1", "testdata", name))
				if err != nil {
					return err
				}
				if _, err := conn.Exec(context.Background(), strings.ReplaceAll(string(sql), "@", "SCR1PT")); err != nil {
					return err
				}
			}
			env.Setenv("FROM", from)
			env.Setenv("CODEHUB_DATABASE_URL", pgtest.New(env.T().(testing.TB), nil))
			env.Setenv("CODEHUB_DATA_DIR", filepath.Join(env.WorkDir, "data"))
			env.Setenv("DOCKER_HOST", os.Getenv("DOCKER_HOST"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}
