package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type templatesCmd struct {
	List   templatesListCmd   `cmd:"" aliases:"ls" help:"List the templates of workspaces."`
	Show   templatesShowCmd   `cmd:"" help:"Show a template and its parameters."`
	Apply  templatesApplyCmd  `cmd:"" help:"Save a template from a file (administrators)."`
	Delete templatesDeleteCmd `cmd:"" aliases:"rm" help:"Delete a saved template (administrators)."`
	From   templatesFromCmd   `cmd:"" help:"Print a template of a workspace's settings."`
}

type templatesListCmd struct {
	serverFlags
	terminal.Format
}

func (t templatesListCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	list, err := c.Templates(ctx)
	if err != nil {
		return err
	}
	rows := [][]string{{"NAME", "TITLE", "IMAGE", "SIZE", "SOURCE"}}
	for _, e := range list.Templates {
		source := e.Source
		if e.Hidden {
			source += ", hidden"
		}
		rows = append(rows, []string{e.Name, titleOf(e.Title, e.Name), cmp.Or(e.Image, "default"), e.Size, source})
	}
	text := terminal.Table(rows)
	for _, p := range list.Problems {
		text += "\nproblem: " + terminal.Plain(p)
	}
	return t.Print(k.Stdout, list, text)
}

// titleOf returns the English title, another one, or the name.
func titleOf(title map[string]string, name string) string {
	return terminal.Plain(cmp.Or(title["en"], title["ko"], name))
}

type templatesShowCmd struct {
	serverFlags
	terminal.Format
	Template string `arg:"" help:"A template's name."`
	YAML     bool   `name:"yaml" help:"Print its YAML (administrators)."`
	History  bool   `help:"List its saved versions (administrators)."`
}

func (t templatesShowCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	e, err := c.Template(ctx, t.Template)
	if err != nil {
		return err
	}
	if t.YAML || t.History {
		if e.Text == "" {
			return errors.New("only administrators see the YAML and the history of a template")
		}
	}
	switch {
	case t.YAML:
		return t.Print(k.Stdout, e, strings.TrimSuffix(e.Text, "\n"))
	case t.History:
		rows := [][]string{{"VERSION", "SAVED", "BY", ""}}
		for _, h := range e.History {
			deleted := ""
			if h.Deleted {
				deleted = "deleted"
			}
			rows = append(rows, []string{fmt.Sprint(h.ID), orNever(&h.SavedAt), h.SavedBy, deleted})
		}
		return t.Print(k.Stdout, e, terminal.Table(rows))
	}
	rows := [][]string{{"Name:", e.Name}, {"Title:", titleOf(e.Title, e.Name)}}
	put := func(name, value string) {
		if value != "" {
			rows = append(rows, []string{name, terminal.Plain(value)})
		}
	}
	put("Description:", cmp.Or(e.Description["en"], e.Description["ko"]))
	put("Image:", cmp.Or(e.Image, "that of the server"))
	put("Size:", e.Size)
	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		put("Environment:", name+"="+e.Env[name])
	}
	for _, r := range e.Repositories {
		put("Repository:", strings.TrimSpace(r.URL+" "+r.Branch))
	}
	for _, p := range e.Ports {
		put("Port:", strings.TrimSpace(fmt.Sprint(p.Port)+" "+p.Label))
	}
	put("Secrets:", strings.Join(e.RequiredSecrets, ", "))
	put("Secrets to store:", strings.Join(e.MissingSecrets, ", "))
	put("Extensions:", strings.Join(e.Extensions, ", "))
	if s := e.Scripts; s != nil {
		put("Script, once:", s.Create)
		put("Script, each start:", s.Start)
	}
	for _, p := range e.Parameters {
		put("Parameter:", p.Name+"  "+parameterText(p))
	}
	put("Groups:", strings.Join(e.Groups, ", "))
	put("Version:", e.Version+" ("+e.Source+")")
	if e.Workspaces != nil {
		put("Workspaces:", fmt.Sprint(*e.Workspaces))
	}
	return t.Print(k.Stdout, e, terminal.Table(rows))
}

// parameterText says what values a parameter takes.
func parameterText(p api.TemplateParameter) string {
	text := "text"
	switch {
	case p.Type == "choice":
		text = "one of " + strings.Join(p.Options, ", ")
	case p.Type == "boolean":
		text = "true or false"
	case p.Pattern != "":
		text = "text that matches " + p.Pattern
	}
	if p.Required {
		return text + "; required"
	}
	return text + fmt.Sprintf("; default %q", p.Default)
}

type templatesApplyCmd struct {
	serverFlags
	terminal.Format
	File   string `arg:"" help:"A YAML file, or - for standard input."`
	Name   string `help:"The template's name (default: that of the file)."`
	DryRun bool   `help:"Show what would change without applying it."`
}

func (t templatesApplyCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	name := t.Name
	var text []byte
	var err error
	if t.File == "-" {
		if name == "" {
			return errors.New("a template from standard input needs --name")
		}
		text, err = io.ReadAll(io.LimitReader(os.Stdin, 1<<20))
	} else {
		name = cmp.Or(name, strings.TrimSuffix(filepath.Base(t.File), filepath.Ext(t.File)))
		text, err = os.ReadFile(t.File)
	}
	if err != nil {
		return err
	}
	saved, err := c.SaveTemplate(ctx, name, api.SaveTemplate{Text: string(text), DryRun: t.DryRun})
	if err != nil {
		return err
	}
	did := map[bool]string{false: "Saved", true: "Would save"}[t.DryRun]
	lines := []string{fmt.Sprintf("%s %s, version %s.", did, saved.Template.Name, saved.Template.Version)}
	for _, change := range saved.Changes {
		lines = append(lines, fmt.Sprintf("  %s: %q → %q", change.Field, change.From, change.To))
	}
	if saved.Workspaces > 0 {
		lines = append(lines, fmt.Sprintf("Workspaces that get an update: %d.", saved.Workspaces))
	}
	return t.Print(k.Stdout, saved, strings.Join(lines, "\n"))
}

type templatesDeleteCmd struct {
	serverFlags
	Template string `arg:"" help:"A template's name."`
}

func (t templatesDeleteCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	if err := c.DeleteTemplate(ctx, t.Template); err != nil {
		return err
	}
	_, err := fmt.Fprintf(k.Stdout, "Deleted %s.\n", terminal.Plain(t.Template))
	return err
}

type templatesFromCmd struct{ onWorkspace }

// Help describes what the template has.
func (templatesFromCmd) Help() string {
	return `The values of environment variables that you set are not in it, since they may be secrets. An administrator saves it with codehub templates apply.`
}

func (t templatesFromCmd) Run(ctx context.Context, k *kong.Context) error {
	return t.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		out, err := c.TemplateOf(ctx, id)
		return out, strings.TrimSuffix(out.Text, "\n"), err
	})
}

// paramFlag sets parameters of a template.
type paramFlag struct {
	Param []string `placeholder:"NAME=VALUE" sep:"none" help:"Set a parameter of the template."`
}

func (f paramFlag) values() (map[string]string, error) {
	if len(f.Param) == 0 {
		return nil, nil
	}
	values := map[string]string{}
	for _, given := range f.Param {
		name, value, found := strings.Cut(given, "=")
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("the parameter %s is given twice", name)
		}
		if !found {
			return nil, fmt.Errorf("the parameter %s has no value; give --param %s=VALUE", name, name)
		}
		values[name] = value
	}
	return values, nil
}

type updateTemplateCmd struct {
	onWorkspace
	paramFlag
	Previous bool `help:"Go back to the version before the last update."`
	Restart  bool `help:"Restart the workspace now, so that it takes effect."`
	Wait     bool `short:"w" help:"With --restart: wait until it runs again."`
}

func (u updateTemplateCmd) Run(ctx context.Context, k *kong.Context) error {
	values, err := u.values()
	if err != nil {
		return err
	}
	if u.Previous && values != nil {
		return errors.New("--previous takes the parameters of the version before; leave out --param")
	}
	return u.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		var w api.Workspace
		var err error
		if u.Previous {
			w, err = c.Do(ctx, id, "revert-template")
		} else {
			w, err = c.UpdateTemplate(ctx, id, api.UpdateTemplate{Parameters: values})
		}
		if err == nil && u.Restart {
			w, err = c.Restart(ctx, id)
			if err == nil && u.Wait {
				w, err = reach(ctx, k, c, w, "RUNNING")
			}
			return outcome(w, err)
		}
		if err != nil || w.Template == nil {
			return outcome(w, err)
		}
		return w, fmt.Sprintf("%s: version %s of the template %s takes effect at the next start", terminal.Plain(w.Name), w.Template.Version, w.Template.Name), nil
	})
}

// templateRows describe the template of a workspace.
func templateRows(w api.Workspace) [][]string {
	if w.Template == nil {
		return nil
	}
	rows := [][]string{{"Template:", w.Template.Name + ", version " + w.Template.Version}}
	for _, name := range slices.Sorted(maps.Keys(w.Template.Parameters)) {
		rows = append(rows, []string{"Parameter:", name + "=" + terminal.Plain(w.Template.Parameters[name])})
	}
	if w.Template.UpdateAvailable {
		rows = append(rows, []string{"Template update:", "available; run: codehub update-template " + w.Name})
	}
	return rows
}
