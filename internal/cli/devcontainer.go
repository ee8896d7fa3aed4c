package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type environmentCmd struct {
	onWorkspace
	Use     string `placeholder:"FILE" help:"Use this file at the next start: its path, or the end of it."`
	Stop    bool   `help:"Use no file any more."`
	Build   bool   `help:"Show the last build of an image."`
	Cancel  bool   `help:"Cancel the build of an image."`
	NoWait  bool   `help:"With --use: do not wait for a build."`
	Restart bool   `help:"With --use or --stop: restart the workspace now."`
	Wait    bool   `short:"w" help:"With --restart: wait until it runs again."`
}

// Help describes what the command reads.
func (environmentCmd) Help() string {
	return `The files are devcontainer.json, or else .gitpod.yml, of the repositories that the running workspace has cloned. The list shows what it would use, and what is not honoured. If the server builds an image from the file, --use prints the log of the build until it ends; the workspace uses the file once the build is done. Ctrl-C leaves the build running.`
}

func (d environmentCmd) Run(ctx context.Context, k *kong.Context) error {
	chosen := 0
	for _, given := range []bool{d.Use != "", d.Stop, d.Build, d.Cancel} {
		if given {
			chosen++
		}
	}
	switch {
	case chosen > 1:
		return errors.New("give one of --use, --stop, --build and --cancel")
	case d.Restart && d.Use == "" && !d.Stop:
		return errors.New("--restart needs --use or --stop")
	case d.NoWait && (d.Use == "" || d.Restart):
		return errors.New("--no-wait needs --use without --restart")
	}
	return d.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		var w api.Workspace
		var err error
		building := false
		switch {
		case d.Build:
			b, err := c.DevcontainerBuild(ctx, id)
			return b, buildText(b, true), err
		case d.Cancel:
			b, err := c.CancelDevcontainerBuild(ctx, id)
			return b, terminal.Plain(b.File) + ": the build is cancelled", err
		case d.Stop:
			w, err = c.StopDevcontainer(ctx, id)
		case d.Use != "":
			w, building, err = d.use(ctx, k.Stderr, c, id)
		default:
			list, err := c.Devcontainers(ctx, id)
			return list, devcontainerText(list), err
		}
		if err == nil && building {
			return w, terminal.Plain(w.Name) + ": an image is being built; show the build with: codehub devcontainer --build NAME", nil
		}
		if err == nil && d.Restart {
			w, err = c.Restart(ctx, id)
			if err == nil && d.Wait {
				w, err = reach(ctx, k, c, w, "RUNNING")
			}
			return outcome(w, err)
		}
		text := terminal.Plain(w.Name) + ": no file takes effect at the next start"
		if w.Devcontainer != nil {
			text = terminal.Plain(w.Name + ": " + w.Devcontainer.File + " takes effect at the next start")
		}
		return w, text, err
	})
}

// use has the next start use a file, and waits for the build of its image, if there is one. With
// --no-wait, building reports that it is not waited for.
func (d environmentCmd) use(ctx context.Context, to io.Writer, c *client.Client, id string) (w api.Workspace, building bool, err error) {
	before, err := lastBuild(ctx, c, id)
	if err != nil {
		return w, false, err
	}
	w, err = c.UseDevcontainer(ctx, id, api.UseDevcontainer{File: d.Use})
	if err != nil {
		return w, false, err
	}
	now, err := lastBuild(ctx, c, id)
	switch {
	case err != nil:
		return w, false, err
	case now.StartedAt.Equal(before.StartedAt): // nothing is built
		return w, false, nil
	case d.NoWait:
		return w, now.EndedAt == nil, nil
	}
	if err := followBuild(ctx, to, c, id, now.StartedAt); err != nil {
		return w, false, err
	}
	w, err = c.Get(ctx, id)
	return w, false, err
}

// lastBuild returns the last build for a workspace; without one, it has no time.
func lastBuild(ctx context.Context, c *client.Client, id string) (api.DevcontainerBuild, error) {
	b, err := c.DevcontainerBuild(ctx, id)
	if client.CodeOf(err) == "not_found" {
		err = nil
	}
	return b, err
}

// buildInterval is how often a build is asked for while a command waits for its end.
const buildInterval = time.Second

// followBuild prints the lines of the log of the build that began at a time, until it ends. The
// error says why the image was not built.
func followBuild(ctx context.Context, to io.Writer, c *client.Client, id string, began time.Time) error {
	log, waits := "", false
	for {
		b, err := c.DevcontainerBuild(ctx, id)
		switch {
		case ctx.Err() != nil:
			return errBuildContinues
		case err != nil:
			return err
		case !b.StartedAt.Equal(began):
			return errors.New("another build has begun")
		case b.State == "waiting" && !waits:
			waits = true
			fmt.Fprintln(to, lowered("devcontainer.build.", b.State))
		}
		if b.EndedAt == nil { // the last line may grow
			b.Log = b.Log[:strings.LastIndexByte(b.Log, '\n')+1]
		}
		printLog(to, added(log, b.Log))
		log = b.Log
		switch {
		case b.EndedAt == nil:
		case b.State == "done":
			return nil
		case b.Error != "":
			return errors.New("the build failed: " + terminal.Plain(b.Error))
		default:
			return errors.New("the build ended: " + lowered("devcontainer.build.", b.State))
		}
		select {
		case <-ctx.Done():
			return errBuildContinues
		case <-time.After(buildInterval):
		}
	}
}

var errBuildContinues = errors.New("interrupted; the build continues. Show it with: codehub devcontainer --build NAME")

// added returns what a log has in addition to an earlier state of it. Both are the end of the whole
// log, so the later one may lack the beginning of the earlier one.
func added(earlier, now string) string {
	for i := range earlier {
		if rest, ok := strings.CutPrefix(now, earlier[i:]); ok {
			return rest
		}
	}
	return now
}

// printLog prints the lines of a program's output.
func printLog(to io.Writer, text string) {
	for line := range strings.Lines(text) {
		fmt.Fprintln(to, terminal.Plain(strings.TrimRight(line, "\r\n")))
	}
}

// buildText describes a build for a terminal.
func buildText(b api.DevcontainerBuild, all bool) string {
	rows := [][]string{{"Build:", terminal.Plain(b.File)}, {"State:", terminal.Plain(strings.TrimSuffix(lowered("devcontainer.build.", b.State)+": "+b.Step, ": "))}}
	if b.Error != "" {
		rows = append(rows, []string{"Error:", terminal.Plain(b.Error)})
	}
	rows = append(rows, ignoredRows(b.Ignored)...)
	text := terminal.Table(rows)
	if all && b.Log != "" {
		var log strings.Builder
		printLog(&log, b.Log)
		text += "\n\n" + log.String()
	}
	return text
}

func ignoredRows(list []api.DevcontainerIgnored) (rows [][]string) {
	for _, i := range list {
		at := ""
		if i.Line > 0 {
			at = fmt.Sprintf(" (line %d)", i.Line)
		}
		rows = append(rows, []string{"Not honoured:", terminal.Plain(i.Property + at + ": " + words("devcontainer.reason.", i.Reason))})
	}
	return rows
}

// devcontainerText describes the files for a terminal.
func devcontainerText(list api.DevcontainerList) string {
	if len(list.Files) == 0 {
		return "the repositories do not describe their environment"
	}
	var texts []string
	for _, f := range list.Files {
		rows := [][]string{{"File:", f.File}}
		put := func(name, value string) {
			if value != "" {
				rows = append(rows, []string{name, terminal.Plain(value)})
			}
		}
		switch {
		case f.Changed:
			put("Used:", "an earlier version")
		case f.Used:
			put("Used:", "yes")
		}
		put("Problem:", f.Message)
		if f.Problem == "" {
			put("Name:", f.Name)
			put("Dockerfile:", f.Dockerfile)
			put("Features:", strings.Join(f.Features, ", "))
			if f.Dockerfile == "" {
				put("Image:", cmp.Or(f.Image, "as it is"))
			}
			put("Size:", f.Size)
			put("Folder:", "~/"+f.Folder)
			for _, name := range slices.Sorted(maps.Keys(f.Env)) {
				put("Environment:", name+"="+f.Env[name])
			}
			for _, p := range f.Ports {
				put("Port:", strings.TrimSpace(fmt.Sprint(p.Port)+" "+p.Label))
			}
			for _, s := range f.Scripts {
				for _, c := range s.Commands {
					put(s.Name+":", strings.TrimSpace(c.Name+" "+cmp.Or(c.Shell, fmt.Sprintf("%q", c.Args))))
				}
			}
			put("Extensions:", strings.Join(f.Extensions, ", "))
			for _, name := range slices.Sorted(maps.Keys(f.Settings)) {
				put("Setting:", name)
			}
			for _, s := range f.Secrets {
				state := "missing; run: codehub secret create NAME --env " + s.Name
				if s.Present {
					state = "present"
				}
				put("Secret:", s.Name+" ("+state+") "+s.Description)
			}
			rows = append(rows, ignoredRows(f.Ignored)...)
		}
		texts = append(texts, terminal.Table(rows))
	}
	if list.More {
		texts = append(texts, "there are more files")
	}
	if list.Build != nil {
		texts = append(texts, buildText(*list.Build, false))
	}
	return strings.Join(texts, "\n\n")
}
