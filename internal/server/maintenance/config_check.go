package maintenance

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/server/config"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check settings, and print those in effect."`
}

// configCheckCmd reads the settings of serve from the environment. It has no settings of its own,
// since a wrong one would end the command before it runs.
type configCheckCmd struct {
	terminal.Format
}

// Help describes the command beyond its flags.
func (configCheckCmd) Help() string {
	return "It reads the same environment as codehub serve, starts nothing and changes nothing. Secrets are not printed. The exit status is 2 if a setting is wrong."
}

// checkedConfig is what codehub config check prints as JSON.
type checkedConfig struct {
	Problems []configProblem `json:"problems"`
	Settings []api.Setting   `json:"settings"`
}

type configProblem struct {
	Setting string `json:"setting"`
	Why     string `json:"why"`
}

func (c configCheckCmd) Run(k *kong.Context) error {
	out := checkedConfig{Problems: []configProblem{}}
	out.Problems, out.Settings = checkEnvironment()
	var text strings.Builder
	for _, p := range out.Problems {
		fmt.Fprintf(&text, "%s: %s\n", p.Setting, p.Why)
	}
	if len(out.Problems) > 0 {
		text.WriteString("\n")
	}
	rows := [][]string{{"SETTING", "VALUE", "FROM"}}
	for _, s := range out.Settings {
		rows = append(rows, []string{s.Setting, s.Value, s.From})
	}
	text.WriteString(terminal.Table(rows))
	if err := c.Print(k.Stdout, out, text.String()); err != nil {
		return err
	}
	if n := len(out.Problems); n > 0 {
		return terminal.Exit(terminal.ExitUsage, fmt.Errorf("%d of the settings are wrong; they are named above, and the table shows their defaults", n))
	}
	return nil
}

// fromVariable finds the variable in the parser's message about a value that it cannot read.
var fromVariable = regexp.MustCompile(`^(?:--\S+: )?(.*) \(from envar (\w+)=`)

// checkEnvironment reads the settings as often as there are wrong ones: each is noted and taken
// out of the environment of this process, so that the next one is found.
func checkEnvironment() (problems []configProblem, effective []api.Setting) {
	problems = []configProblem{}
	note := func(name, why string) (removed bool) {
		problems = append(problems, configProblem{name, why})
		for part := range strings.SplitSeq(name, ", ") {
			if _, set := os.LookupEnv(part); set {
				removed = os.Unsetenv(part) == nil
			}
		}
		return removed
	}
	for {
		var read struct {
			config.Config `embed:""`
		}
		err := config.CheckEnvironment(os.Environ())
		if err == nil {
			var parser *kong.Kong
			if parser, err = kong.New(&read, kong.Vars{"codehub_version": "check"}, setting.Seconds); err == nil {
				_, err = parser.Parse(nil)
			}
		}
		if err == nil {
			err = read.Resolve()
		}
		var wrong *setting.Problem
		switch m := []string(nil); {
		case err == nil:
			return problems, read.Effective()
		case errors.As(err, &wrong):
			if !note(wrong.Setting, wrong.Why+"; "+wrong.Do) {
				return problems, read.Effective()
			}
		default:
			if m = fromVariable.FindStringSubmatch(err.Error()); m == nil || !note(m[2], m[1]) {
				if m == nil {
					note("settings", err.Error())
				}
				return problems, read.Effective()
			}
		}
	}
}
