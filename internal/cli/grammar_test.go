package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// The part of the grammar that Main builds parses a command as the whole grammar does.
func TestGrammarOfOneCommand(t *testing.T) {
	t.Parallel()
	type grammar struct {
		Commands    `embed:""`
		ShowVersion kong.VersionFlag `name:"version"`
	}
	whole := parserOf(t, &grammar{})
	for _, command := range whole.Model.Children {
		for _, name := range append([]string{command.Name}, command.Aliases...) {
			part := parserOf(t, grammarOf(&grammar{}, []string{name}))
			if name == completionName {
				if len(part.Model.Children) != len(whole.Model.Children) {
					t.Errorf("%s has only %d commands", name, len(part.Model.Children))
				}
				continue
			}
			if len(part.Model.Children) != 1 {
				t.Errorf("%s is parsed with %d commands", name, len(part.Model.Children))
			}
			for _, leaf := range append(leavesOf(command), command) {
				path := pathOf(leaf)
				args := append(append([]string{name}, path[1:]...), "--help")
				if got, want := help(t, grammarOf(&grammar{}, args), args), help(t, &grammar{}, args); got != want || !strings.Contains(got, "Usage: codehub "+strings.Join(path, " ")) {
					t.Errorf("%q:\n%s\nwant\n%s", args, got, want)
				}
			}
		}
	}
	for _, args := range [][]string{nil, {"--help"}, {"--version"}, {"lst"}, {""}} {
		if got := len(parserOf(t, grammarOf(&grammar{}, args)).Model.Children); got != len(whole.Model.Children) {
			t.Errorf("%q: %d commands", args, got)
		}
	}
}

func parserOf(t *testing.T, commands any) *kong.Kong {
	t.Helper()
	parser, err := Parser(commands, "test")
	if err != nil {
		t.Fatal(err)
	}
	return parser
}

func leavesOf(n *kong.Node) (leaves []*kong.Node) {
	for _, child := range n.Children {
		leaves = append(append(leaves, child), leavesOf(child)...)
	}
	return leaves
}

// pathOf returns the words that name a command.
func pathOf(n *kong.Node) []string {
	if n.Parent == nil {
		return nil
	}
	return append(pathOf(n.Parent), n.Name)
}

// help returns what a command prints when it is asked for help.
func help(t *testing.T, commands any, args []string) string {
	t.Helper()
	parser := parserOf(t, commands)
	var out bytes.Buffer
	parser.Stdout, parser.Stderr = &out, &out
	parser.Exit = func(int) {}
	_, _ = parser.Parse(args)
	return out.String()
}
