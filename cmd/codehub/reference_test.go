package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"codehub/internal/cli"
	"codehub/internal/server/config"
)

var update = flag.Bool("update", false, "rewrite docs/cli.md")

// docs/cli.md is made from the commands themselves: make docs renews it.
func TestReferenceIsCurrent(t *testing.T) {
	t.Parallel()
	const page = "../../docs/cli.md"
	parser, err := cli.Parser(newCommands(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	want := reference(parser.Model)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/cli.md is not what the commands say; run make docs")
	}
}

// The help of a command is an imperative of at most eight words.
func TestHelpIsShort(t *testing.T) {
	t.Parallel()
	parser, err := cli.Parser(newCommands(), "dev")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range parser.Model.Leaves(false) {
		words := strings.Fields(n.Help)
		if len(words) == 0 || len(words) > 8 || !strings.HasSuffix(n.Help, ".") || strings.Count(n.Help, ". ") > 0 {
			t.Errorf("codehub %s: %q", n.FullPath(), n.Help)
		}
	}
}

func reference(app *kong.Application) string {
	var b strings.Builder
	b.WriteString(`# Command line

` + "`codehub`" + ` is the server and its client in one program. This page is generated from the commands; ` + "`codehub COMMAND --help`" + ` prints one of them.

Client commands talk to the server of the last ` + "`codehub login`" + `, or to the one that ` + "`--url`" + ` or ` + "`CODEHUB_URL`" + ` names. For scripts set
` + "`CODEHUB_SESSION_TOKEN`" + ` to an API token (` + "`codehub tokens create`" + `). Exit codes: 0 success, 1 failure, 2 wrong usage, 3 something that does not exist.
` + "`codehub exec` and `codehub busy`" + ` end with the exit status of their command, 127 if it was not started, and ` + "`codehub exec`" + ` with 125 for other failures.
` + "`codehub ssh`" + ` ends with the exit status of ` + "`ssh`" + `.

Client commands take ` + "`--url URL`" + `, and ` + "`-o json`" + ` where they print a table or a report; the tables below leave both out.

## Server commands
`)
	var client []*kong.Node
	for _, n := range app.Leaves(true) {
		if isClient(n) {
			client = append(client, n)
			continue
		}
		describe(&b, n)
	}
	b.WriteString("\n## Client commands\n")
	for _, n := range client {
		describe(&b, n)
	}
	return b.String()
}

func isClient(n *kong.Node) bool {
	for ; n != nil; n = n.Parent {
		if n.Group != nil {
			return n.Group.Title == "Client:"
		}
	}
	return false
}

// describe writes one command with its arguments and flags. The settings of the
// server are on a page of their own.
func describe(b *strings.Builder, n *kong.Node) {
	name, _, _ := strings.Cut(strings.TrimPrefix(n.FullPath(), "codehub "), " (")
	fmt.Fprintf(b, "\n### codehub %s\n\n%s\n", name, n.Help)
	if n.Detail != "" {
		detail := n.Detail
		if strings.Contains(detail, "\n") {
			detail = "```\n" + detail + "\n```"
		}
		fmt.Fprintf(b, "\n%s\n", detail)
	}
	if len(n.Aliases) > 0 {
		fmt.Fprintf(b, "\nAlso: `%s`.\n", strings.Join(n.Aliases, "`, `"))
	}
	var rows []string
	settings := false
	for _, p := range n.Positional {
		rows = append(rows, row("`"+p.Summary()+"`", p.Help, p.Default, p.Tag.Envs))
	}
	for _, f := range n.Flags {
		switch {
		case f.Hidden, f.Name == "help", f.Name == "version", f.Name == "url", f.Name == "output":
			continue
		case isSetting(f):
			settings = true
			continue
		}
		form := "--" + f.Name
		if f.Tag.Negatable != "" {
			form = "--[no-]" + f.Name
		}
		if f.Short != 0 {
			form = fmt.Sprintf("-%c, %s", f.Short, form)
		}
		if !f.IsBool() {
			form += " " + cmp.Or(f.PlaceHolder, "VALUE")
		}
		rows = append(rows, row("`"+form+"`", f.Help, f.Default, f.Envs))
	}
	if settings {
		b.WriteString("\nIt takes the [settings](settings.md) of the server, as flags or from the environment.\n")
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n| argument | meaning |\n| --- | --- |\n%s", strings.Join(rows, ""))
	}
}

// isSetting reports whether a flag is one of config.Config.
func isSetting(f *kong.Flag) bool {
	for field := range config.Fields() {
		if field.Tag.Get("name") == f.Name && field.Tag.Get("help") == f.Help {
			return true
		}
	}
	return false
}

func row(form, help, otherwise string, envs []string) string {
	if otherwise != "" && !strings.Contains(help, "default") {
		help += fmt.Sprintf(" Default: %s.", otherwise)
	}
	if len(envs) > 0 {
		help += fmt.Sprintf(" Also `%s`.", strings.Join(envs, "`, `"))
	}
	return "| " + strings.ReplaceAll(form, "|", `\|`) + " | " + strings.ReplaceAll(help, "|", `\|`) + " |\n"
}
