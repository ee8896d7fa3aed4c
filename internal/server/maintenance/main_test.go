package maintenance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"codehub/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"codehub": func() {
		var commands struct {
			Commands `embed:""`
			Images   Images `cmd:"" help:"Manage images."`
		}
		os.Exit(cli.Main(&commands, "test", os.Args[1:]))
	}})
}

// exits CODE COMMAND … checks a command's exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if (fmt.Sprint(code) == args[0]) == neg {
		ts.Fatalf("%q exits with %d", args[1:], code)
	}
}
