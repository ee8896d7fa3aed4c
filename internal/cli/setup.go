package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type setupCmd struct {
	onThisWorkspace
	Retry bool `help:"Run the failed steps again."`
	Wait  bool `short:"w" help:"Wait for the end of the steps."`
	Log   bool `help:"Print the output of the steps too."`
}

func (s setupCmd) Run(ctx context.Context, k *kong.Context) error {
	failed := false
	err := s.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		ask := c.Setup
		if s.Retry {
			ask = c.RetrySetup
		}
		out, err := ask(ctx, id)
		if err == nil && s.Wait {
			out, err = awaitSetup(ctx, k.Stderr, c, id)
			failed = errors.Is(err, errSetupFailed)
			if failed {
				err = nil
			}
		}
		return out, setupTable(out, s.Log), err
	})
	if err == nil && failed {
		return errSetupFailed
	}
	return err
}

var errSetupFailed = errors.New("a step of the setup failed; the workspace runs. Try again with: codehub setup --retry NAME")

// setupInterval is how often a setup is asked for while a command waits for its end.
const setupInterval = 500 * time.Millisecond

// awaitSetup waits for the end of a workspace's setup, and prints each step as it changes. It is
// errSetupFailed if a step has failed.
func awaitSetup(ctx context.Context, to io.Writer, c *client.Client, id string) (api.Setup, error) {
	said := map[int]string{}
	for {
		out, err := c.Setup(ctx, id)
		if err != nil {
			return out, err
		}
		running, failed := false, false
		for i, st := range out.Steps {
			running = running || st.State == "running" || st.State == "waiting"
			failed = failed || st.State == "failed"
			// A line for each quarter is enough for a log.
			if now := st.State + fmt.Sprint(st.Percent/25); said[i] != now && st.State != "waiting" {
				said[i] = now
				fmt.Fprintln(to, terminal.Plain(stepWords(st)))
			}
		}
		switch {
		case running:
		case failed:
			return out, errSetupFailed
		default:
			return out, nil
		}
		select {
		case <-ctx.Done():
			return out, ctx.Err()
		case <-time.After(setupInterval):
		}
	}
}

// stepWords is a line about a step: "clone https://git.example/api: running 45 %".
func stepWords(st api.SetupStep) string {
	text := st.Kind + " " + st.Name + ": " + st.State
	if st.State == "running" && st.Percent > 0 {
		text += fmt.Sprintf(" %d %%", st.Percent)
	}
	if st.State == "skipped" && st.Reason == "earlier" {
		text += ", since it failed at an earlier start. Run it again with --retry"
	}
	return text
}

func setupTable(s api.Setup, log bool) string {
	if len(s.Steps) == 0 {
		return "nothing to set up"
	}
	var b strings.Builder
	for i, st := range s.Steps {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(terminal.Plain(stepWords(st)))
		if st.Error != "" {
			b.WriteString("\n" + indent(st.Error))
		}
		if log && st.Log != "" {
			b.WriteString("\n" + indent(st.Log))
		}
	}
	return b.String()
}

// indent returns the lines of a program's output for a terminal.
func indent(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, "  "+terminal.Plain(strings.TrimRight(line, "\n")))
	}
	return strings.Join(lines, "\n")
}
