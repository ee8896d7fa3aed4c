// Package recipe writes the Dockerfiles by which images of devcontainer.json files are built, from
// those of repositories and for Features. They are for Docker's classic builder: nothing of BuildKit
// is accepted.
package recipe

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"codehub/internal/workspace/imageref"
)

// Limits of a Dockerfile.
const (
	maxDockerfile = 256 << 10 // bytes
	maxStages     = 64
	maxValue      = 4 << 10 // bytes of a variable for FROM: references to each other could multiply its length
)

var (
	directive = regexp.MustCompile(`(?i)^#\s*escape\s*=\s*(.+?)\s*$`)
	continued = regexp.MustCompile(`\\[ \t]*$`)
	stageName = regexp.MustCompile(`^[a-z][a-z0-9_.-]*$`)
	// flags are all instructions of the classic builder, with their flags.
	flags = map[string][]string{
		"ADD": {"--chown"}, "ARG": nil, "CMD": nil, "COPY": {"--from", "--chown"}, "ENTRYPOINT": nil, "ENV": nil, "EXPOSE": nil, "FROM": {"--platform"},
		"HEALTHCHECK": {"--interval", "--timeout", "--start-period", "--start-interval", "--retries"}, "LABEL": nil, "MAINTAINER": nil, "RUN": nil,
		"SHELL": nil, "STOPSIGNAL": nil, "USER": nil, "VOLUME": nil, "WORKDIR": nil,
	}
)

// Dockerfile is one that Read has checked.
type Dockerfile struct {
	// Images are those that it names, each once: in FROM and in COPY --from, without stages and
	// scratch.
	Images []string

	stages []string // names in lower case; "": it has none
	lines  []string // one for each instruction
}

// Text returns the Dockerfile with further lines after each FROM. Each instruction is one line, as
// it was checked, so all versions of Docker read the same, and find exactly Images. LABEL is left
// out: Docker also gives the labels to the containers of the build, and codehub finds its containers
// by labels.
func (d *Dockerfile) Text(afterFrom string) string {
	var b strings.Builder
	for _, line := range d.lines {
		b.WriteString(line + "\n")
		if strings.HasPrefix(line, "FROM ") {
			b.WriteString(afterFrom)
		}
	}
	return b.String()
}

// instruction is one of a Dockerfile.
type instruction struct {
	name  string // in upper case
	flags []string
	args  string
}

// Read reads a Dockerfile whose ARGs have these values. It refuses syntax that versions of Docker
// read in different ways, and instructions that make Docker download as its host, outside the
// network isolation. The error is a clause without a full stop.
func Read(text string, args map[string]string) (*Dockerfile, error) {
	switch {
	case len(text) > maxDockerfile:
		return nil, fmt.Errorf("the Dockerfile has more than %d KiB", maxDockerfile>>10)
	case !utf8.ValidString(text):
		return nil, errors.New("the Dockerfile is not UTF-8")
	case strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\r"):
		return nil, errors.New("the Dockerfile has a carriage return within a line")
	}
	type lines struct {
		begin int
		text  []string
	}
	var list []lines
	goesOn := false
	for n, line := range strings.Split(strings.TrimPrefix(text, "\ufeff"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		trimmed := strings.TrimLeftFunc(line, unicode.IsSpace)
		if trimmed == "" || trimmed[0] == '#' { // also within an instruction
			if d := directive.FindStringSubmatch(trimmed); d != nil && d[1] != `\` {
				return nil, fmt.Errorf("line %d: another escape character than the backslash is not supported", n+1)
			}
			continue
		}
		if !goesOn {
			list, line = append(list, lines{begin: n + 1}), trimmed
		}
		content := continued.ReplaceAllString(line, "")
		if strings.HasSuffix(strings.TrimSpace(content), `\`) {
			return nil, fmt.Errorf("line %d: the end has two backslashes, or a special blank after one", n+1)
		}
		last := &list[len(list)-1]
		last.text = append(last.text, content)
		goesOn = content != line
	}
	d := &Dockerfile{}
	values := map[string]string{}
	for _, l := range list {
		i, err := parse(strings.Join(l.text, ""))
		switch {
		case err != nil:
		case i.name == "ARG" && len(d.stages) == 0:
			err = readArgs(i.args, args, values)
		case i.name == "FROM":
			err = d.from(&i, values)
		case i.name == "COPY":
			err = d.copyFrom(i)
		case i.name == "ADD" && downloads(i.args):
			err = errors.New("ADD of a URL, or with a variable or a backslash, is not supported; use RUN with curl, or COPY")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", l.begin, err)
		}
		if i.name != "LABEL" && i.name != "MAINTAINER" {
			d.lines = append(d.lines, strings.TrimSpace(strings.Join(slices.Concat([]string{i.name}, i.flags, []string{i.args}), " ")))
		}
	}
	if len(d.stages) == 0 {
		return nil, errors.New("the Dockerfile has no FROM")
	}
	return d, nil
}

// cut divides a text after its first word.
func cut(text string) (word, rest string) {
	end := strings.IndexAny(text+" ", "\t\v\f\r ") // Docker trims other blanks of Unicode, but they do not end a word
	return text[:end], strings.TrimSpace(text[end:])
}

func parse(line string) (i instruction, err error) {
	i.name, i.args = cut(line)
	i.name = strings.ToUpper(i.name)
	known, ok := flags[i.name]
	hereStrings := strings.ReplaceAll(i.args, "<<<", "")
	switch {
	case i.name == "ONBUILD":
		return i, errors.New("ONBUILD is not supported")
	case !ok:
		return i, fmt.Errorf("%.30q is not an instruction; here-documents (<<) are not supported", i.name)
	case slices.Contains([]string{"ADD", "COPY", "RUN"}, i.name) && strings.Contains(i.args, "<<") && strings.Contains(hereStrings, "<"):
		// Next to a here-string, an expansion could make another < a here-document.
		return i, fmt.Errorf("%s with a here-document (<<) needs BuildKit, which this server does not use", i.name)
	}
	for strings.HasPrefix(i.args, "--") {
		var flag string
		flag, i.args = cut(i.args)
		option, _, _ := strings.Cut(flag, "=")
		if strings.ContainsFunc(flag, func(r rune) bool { return r >= unicode.MaxASCII || strings.ContainsRune("\"'`\\", r) }) {
			return i, fmt.Errorf("a flag of %s has a quote, an escape character or a special character", i.name)
		}
		if !slices.Contains(known, option) {
			return i, fmt.Errorf("%s %s needs BuildKit, which this server does not use", i.name, option)
		}
		i.flags = append(i.flags, flag)
	}
	return i, nil
}

// from begins a stage. It writes the image as it was resolved, without variables, and without
// --platform: the images are those that were pulled.
func (d *Dockerfile) from(i *instruction, values map[string]string) error {
	words, stage := strings.Fields(i.args), ""
	switch {
	case len(d.stages) == maxStages:
		return fmt.Errorf("the Dockerfile has more than %d stages", maxStages)
	case len(words) == 3 && strings.EqualFold(words[1], "as"):
		if stage = strings.ToLower(words[2]); !stageName.MatchString(stage) {
			return fmt.Errorf("%.100q cannot be the name of a stage", words[2])
		}
	case len(words) != 1:
		return errors.New("FROM has to be FROM IMAGE or FROM IMAGE AS NAME")
	}
	image, err := expand(words[0], values)
	if err == nil && image != "scratch" {
		err = d.name(image, d.stages)
	}
	d.stages = append(d.stages, stage)
	i.flags, i.args = nil, image
	if stage != "" {
		i.args += " AS " + stage
	}
	return err
}

// copyFrom adds the image of COPY --from. A stage cannot copy from itself.
func (d *Dockerfile) copyFrom(i instruction) (err error) {
	earlier := d.stages[:max(len(d.stages)-1, 0)]
	for _, flag := range i.flags {
		from, ok := strings.CutPrefix(flag, "--from=")
		n, notNumber := strconv.Atoi(from)
		switch {
		case !ok || err != nil:
		case notNumber != nil:
			err = d.name(from, earlier)
		case n < 0 || n >= len(earlier):
			err = fmt.Errorf("there is no stage %d", n)
		}
	}
	return err
}

// name adds an image, unless it is the name of a stage.
func (d *Dockerfile) name(image string, stages []string) error {
	switch {
	case image == "":
		return errors.New("the name of the image is empty")
	case slices.Contains(stages, strings.ToLower(image)), slices.Contains(d.Images, image):
	case !imageref.Valid(image):
		return fmt.Errorf("%.100q is not an image", image)
	default:
		d.Images = append(d.Images, image)
	}
	return nil
}

// downloads reports whether a source of ADD is a URL, or could be one.
func downloads(sources string) bool {
	return strings.Contains(strings.NewReplacer(`"`, "", `'`, "").Replace(sources), "://") || strings.ContainsAny(sources, "$\\")
}

var arg = regexp.MustCompile("^([A-Za-z_][A-Za-z0-9_]*)(=(?:\"([^\"'\\\\`]*)\"|'([^\"'\\\\`$]*)'|([^\\s\"'\\\\`]*)))?(?:[\\t\\v\\f\\r ]+|$)")

// readArgs reads the ARGs before the first FROM, which may refer to earlier ones.
func readArgs(text string, given, values map[string]string) error {
	if text == "" {
		return errors.New("ARG has no name")
	}
	for text != "" {
		m := arg.FindStringSubmatch(text)
		if m == nil {
			return errors.New("ARG has to be ARG NAME, or ARG NAME=VALUE with at most one pair of quotes and no escape character")
		}
		text = text[len(m[0]):]
		name := m[1]
		value, ok := given[name]
		if !ok && m[2] != "" {
			v, err := expand(m[3]+m[4]+m[5], values)
			value, ok = v, err == nil
		}
		if delete(values, name); ok {
			values[name] = value
		}
	}
	return nil
}

var errTooLong = fmt.Errorf("the value of a variable is longer than %d KiB", maxValue>>10)

var reference = regexp.MustCompile(`^(?:\{([A-Za-z_][A-Za-z0-9_]*)(\}|:[-+])|([A-Za-z_][A-Za-z0-9_]*))`)

// expand replaces $NAME, ${NAME}, ${NAME:-WORD} and ${NAME:+WORD} in a text.
func expand(text string, values map[string]string) (string, error) {
	before, rest, found := strings.Cut(text, "$")
	switch {
	case len(text) > maxValue:
		return "", errTooLong
	case !found:
		return text, nil
	}
	m := reference.FindStringSubmatch(rest)
	if m == nil {
		return "", fmt.Errorf("codehub cannot resolve %.100q", text)
	}
	rest = rest[len(m[0]):]
	name := m[1] + m[3]
	value, ok := values[name]
	if operator := m[2]; strings.HasPrefix(operator, ":") {
		word, behind, closed := braced(rest)
		if !closed {
			return "", fmt.Errorf("codehub cannot resolve %.100q", text)
		}
		rest, ok = behind, true
		if (operator == ":-") == (value == "") {
			var err error
			if value, err = expand(word, values); err != nil {
				return "", err
			}
		}
	}
	if !ok {
		return "", fmt.Errorf("%s has no value; give it one with ARG before FROM, or in build.args", name)
	}
	after, err := expand(rest, values)
	if text = before + value + after; err == nil && len(text) > maxValue {
		err = errTooLong
	}
	return text, err
}

// braced returns the text before the brace that closes the reference, and the text behind it.
func braced(text string) (word, behind string, ok bool) {
	depth := 1
	for i := range len(text) {
		switch {
		case text[i] == '}':
			depth--
		case text[i] == '{' && i > 0 && text[i-1] == '$':
			depth++
		}
		if depth == 0 {
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}
