package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help describes how to use the script.
func (completionCmd) Help() string {
	return `bash: source <(codehub completion bash)
zsh:  source <(codehub completion zsh)
fish: codehub completion fish | source`
}

func (c completionCmd) Run(k *kong.Context) error {
	var script string
	switch words := completions(k.Model.Node); c.Shell {
	case "bash":
		script = bashScript(words)
	case "zsh":
		script = zshScript(words)
	case "fish":
		script = fishScript(words)
	}
	_, err := fmt.Fprint(k.Stdout, script)
	return err
}

// completion is what can follow a command.
type completion struct {
	path  string // "", "start", "tokens create"
	words []completionWord
	names bool // takes a workspace
}

type completionWord struct{ word, help string }

// completions lists, for every command, its subcommands and flags. Words and
// help come from this program's source and hold no quotes.
func completions(root *kong.Node) []completion {
	var all []completion
	var walk func(n *kong.Node, path []string)
	walk = func(n *kong.Node, path []string) {
		c := completion{path: strings.Join(path, " ")}
		for _, child := range n.Children {
			if child.Hidden {
				continue
			}
			c.words = append(c.words, completionWord{child.Name, child.Help})
			walk(child, append(slices.Clone(path), child.Name))
			for _, alias := range child.Aliases {
				walk(child, append(slices.Clone(path), alias))
			}
		}
		c.words = append(c.words, flagWords(n)...)
		c.names = takesWorkspace(n)
		if n.DefaultCmd != nil { // its arguments can follow n, too
			c.words = append(c.words, flagWords(n.DefaultCmd)...)
			c.names = takesWorkspace(n.DefaultCmd)
		}
		all = append(all, c)
	}
	walk(root, nil)
	return all
}

func flagWords(n *kong.Node) (words []completionWord) {
	for _, f := range n.Flags {
		if !f.Hidden {
			words = append(words, completionWord{"--" + f.Name, f.Help})
		}
		if f.Tag.Negatable != "" {
			words = append(words, completionWord{"--no-" + f.Name, "The opposite of --" + f.Name + "."})
		}
	}
	return words
}

func takesWorkspace(n *kong.Node) bool {
	return slices.ContainsFunc(n.Positional, func(p *kong.Value) bool { return p.Name == "workspace" })
}

// pathsOf lists the paths of all commands as words of a shell, between separators.
func pathsOf(all []completion, separator string) string {
	var paths []string
	for _, c := range all {
		if c.path != "" {
			paths = append(paths, "'"+c.path+"'")
		}
	}
	return strings.Join(paths, separator)
}

// shellCase is the part that bash and zsh share: the completions of the words so
// far. The arguments name the variables, which differ between the shells.
func shellCase(all []completion, sofar, list string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  local %s= names=\n  case \"$%s\" in\n", list, sofar)
	for _, c := range all {
		var words []string
		for _, w := range c.words {
			words = append(words, w.word)
		}
		fmt.Fprintf(&b, "    %q) %s=%q", c.path, list, strings.Join(words, " "))
		if c.names {
			b.WriteString(" names=1")
		}
		b.WriteString(" ;;\n")
	}
	b.WriteString("  esac\n")
	return b.String()
}

// Names of workspaces may have any characters, so these scripts never let the
// shell evaluate them.

func bashScript(all []completion) string {
	return `# bash completion for codehub
_codehub() {
  local cur="${COMP_WORDS[COMP_CWORD]}" sofar= word
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "${sofar:+$sofar }$word" in
      ` + pathsOf(all, "|") + `) sofar="${sofar:+$sofar }$word" ;;
    esac
  done
` + shellCase(all, "sofar", "list") + `  COMPREPLY=()
  for word in $list; do
    if [[ "$word" == "$cur"* && ( "$word" != -* || "$cur" == -* ) ]]; then COMPREPLY+=("$word"); fi
  done
  if [[ -n "$names" && "$cur" != -* ]]; then
    while IFS= read -r word; do
      if [[ "$word" == "$cur"* ]]; then COMPREPLY+=("$(printf %q "$word")"); fi
    done < <(codehub list --names 2>/dev/null)
  fi
}
complete -F _codehub codehub
`
}

func zshScript(all []completion) string {
	return `#compdef codehub
_codehub() {
  local sofar= word
  for word in "${(@)words[2,CURRENT-1]}"; do
    case "${sofar:+$sofar }$word" in
      ` + pathsOf(all, "|") + `) sofar="${sofar:+$sofar }$word" ;;
    esac
  done
` + shellCase(all, "sofar", "list") + `  compadd -- ${=list}
  if [[ -n "$names" ]]; then compadd -- "${(@f)$(codehub list --names 2>/dev/null)}"; fi
}
compdef _codehub codehub
`
}

func fishScript(all []completion) string {
	var b strings.Builder
	b.WriteString(`# fish completion for codehub
function __codehub_at
  set -l sofar ''
  set -l words (commandline -opc)
  set -e words[1]
  for word in $words
    switch (string trim -- "$sofar $word")
      case ` + pathsOf(all, " ") + `
        set sofar (string trim -- "$sofar $word")
    end
  end
  test "$sofar" = "$argv[1]"
end
complete -c codehub -f
`)
	for _, c := range all {
		when := fmt.Sprintf("__codehub_at %q", c.path)
		for _, w := range c.words {
			flag, isFlag := strings.CutPrefix(w.word, "--")
			what := "-a " + w.word
			if isFlag {
				what = "-l " + flag
			}
			fmt.Fprintf(&b, "complete -c codehub -n '%s' %s -d '%s'\n", when, what, strings.ReplaceAll(w.help, "'", ""))
		}
		if c.names {
			fmt.Fprintf(&b, "complete -c codehub -n '%s' -a '(codehub list --names 2>/dev/null)'\n", when)
		}
	}
	return b.String()
}
