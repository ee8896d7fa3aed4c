package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type environmentCmd struct {
	onWorkspace
	Use     string `placeholder:"FILE" help:"Use this file at the next start: its path, or the end of it."`
	Stop    bool   `help:"Use no file any more."`
	Restart bool   `help:"With --use or --stop: restart the workspace now."`
	Wait    bool   `short:"w" help:"With --restart: wait until it runs again."`
}

// Help describes what the command reads.
func (environmentCmd) Help() string {
	return `The files are devcontainer.json, or else .gitpod.yml, of the repositories that the running workspace has cloned. The list shows what it would use, and what is not honoured.`
}

func (d environmentCmd) Run(ctx context.Context, k *kong.Context) error {
	switch {
	case d.Use != "" && d.Stop:
		return errors.New("give either --use or --stop")
	case d.Restart && d.Use == "" && !d.Stop:
		return errors.New("--restart needs --use or --stop")
	}
	return d.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		if d.Use == "" && !d.Stop {
			list, err := c.Devcontainers(ctx, id)
			return list, devcontainerText(list), err
		}
		var w api.Workspace
		var err error
		if d.Stop {
			w, err = c.StopDevcontainer(ctx, id)
		} else {
			w, err = c.UseDevcontainer(ctx, id, api.UseDevcontainer{File: d.Use})
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
			put("Image:", cmp.Or(f.Image, "as it is"))
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
			for _, i := range f.Ignored {
				put("Not honoured:", fmt.Sprintf("%s (line %d): %s", i.Property, i.Line, words("devcontainer.reason.", i.Reason)))
			}
		}
		texts = append(texts, terminal.Table(rows))
	}
	if list.More {
		texts = append(texts, "there are more files")
	}
	return strings.Join(texts, "\n\n")
}
