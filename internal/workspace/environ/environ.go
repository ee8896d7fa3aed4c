// Package environ has the rules of the environment variables of workspaces: which
// names and values are allowed, how lines of them are read, and what a workspace's
// hostname and time zone may be. docs/workspaces.md#environment-variables describes them for users.
package environ

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a set of variables. The bytes are those of names and values together.
const (
	MaxVariables = 100
	MaxName      = 128     // bytes
	MaxValue     = 8 << 10 // bytes
	MaxBytes     = 32 << 10
)

// Reasons of an Error. Pages translate them.
const (
	NoValue  = "no_value" // a line without =
	NoEnd    = "no_end"   // NAME<<END without a line END
	BadName  = "bad_name"
	Reserved = "reserved" // a name that codehub sets itself, or without which the IDE does not start
	Twice    = "twice"
	BadValue = "bad_value"
	LongName = "long_name"
	Long     = "long" // the value
	TooMany  = "too_many"
	TooLarge = "too_large"
)

// Error is a variable, or a set of variables, that is refused. It contains no value.
type Error struct {
	Reason string
	Name   string // of the variable; empty for a set, and for a line that does not begin with a valid name
	Line   int    // of a text, from 1; 0 if the variables are not from a text
}

// Error returns a clause without a full stop, such as
// "line 3: the name PATH is reserved".
func (e *Error) Error() string {
	text := e.clause()
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s", e.Line, text)
	}
	return text
}

func (e *Error) clause() string {
	switch e.Reason {
	case NoValue:
		return "there is no = between a name and a value"
	case NoEnd:
		return fmt.Sprintf("there is no line that ends the value of %s", e.Name)
	case BadName:
		if e.Name == "" {
			return "the name is not made of letters, digits and _, without a digit at the beginning"
		}
		return fmt.Sprintf("the name %q is not made of letters, digits and _, without a digit at the beginning", e.Name)
	case Reserved:
		return fmt.Sprintf("the name %s is reserved", e.Name)
	case Twice:
		return fmt.Sprintf("%s is given twice", e.Name)
	case BadValue:
		return fmt.Sprintf("the value of %s has a control character other than a tab or a line break", e.Name)
	case LongName:
		return fmt.Sprintf("a name is longer than %d bytes", MaxName)
	case Long:
		return fmt.Sprintf("the value of %s is longer than %d bytes", e.Name, MaxValue)
	case TooMany:
		return fmt.Sprintf("there are more than %d variables", MaxVariables)
	}
	return fmt.Sprintf("all names and values together are longer than %d bytes", MaxBytes)
}

// reserved are the names that no one else may set: codehub sets them itself, or the
// IDE does not start, or listens elsewhere, with another value.
var reserved = []string{"HASHED_PASSWORD", "HOME", "HOSTNAME", "PASSWORD", "PATH", "PORT"}

// reservedPrefixes begin further reserved names.
var reservedPrefixes = []string{"CODEHUB_", "CODE_SERVER_"}

func isReserved(name string) bool {
	return slices.Contains(reserved, name) ||
		slices.ContainsFunc(reservedPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// CheckName returns an *Error if a variable may not have this name.
func CheckName(name string) error {
	switch {
	case len(name) > MaxName:
		return &Error{Reason: LongName}
	case !validName(name):
		return &Error{Reason: BadName, Name: name}
	case isReserved(name):
		return &Error{Reason: Reserved, Name: name}
	}
	return nil
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

func checkVariable(name, value string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if len(value) > MaxValue {
		return &Error{Reason: Long, Name: name}
	}
	return CheckText(name, []byte(value))
}

// CheckText returns an *Error if the value of a variable, of any length, has characters that are
// not allowed.
func CheckText(name string, value []byte) error {
	if !utf8.Valid(value) || bytes.ContainsFunc(value, func(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\n' }) {
		return &Error{Reason: BadValue, Name: name}
	}
	return nil
}

// Check returns an *Error if a workspace may not have these variables.
func Check(env map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if err := checkVariable(name, env[name]); err != nil {
			return err
		}
	}
	return checkSize(env)
}

func checkSize(env map[string]string) error {
	if len(env) > MaxVariables {
		return &Error{Reason: TooMany}
	}
	size := 0
	for name, value := range env {
		size += len(name) + len(value)
	}
	if size > MaxBytes {
		return &Error{Reason: TooLarge}
	}
	return nil
}

// Merge returns the variables after a change, in which nil removes one. The error is
// an *Error if the result would not pass Check.
func Merge(env map[string]string, change map[string]*string) (map[string]string, error) {
	out := map[string]string{}
	maps.Copy(out, env)
	for _, name := range slices.Sorted(maps.Keys(change)) {
		value := change[name]
		if value == nil {
			delete(out, name)
			continue
		}
		if err := checkVariable(name, *value); err != nil {
			return nil, err
		}
		out[name] = *value
	}
	return out, checkSize(out)
}

// Join returns the variables of all sets. Of two with the same name, that of the later
// set counts.
func Join(sets ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, set := range sets {
		maps.Copy(out, set)
	}
	return out
}

// Parse reads lines of the form NAME=value. A value is everything behind the first =,
// without quotes or escapes. Empty lines count for nothing. A value with line breaks begins
// after a line NAME<<END, where END is any word, and ends before a line END. Errors are *Error.
func Parse(text string) (map[string]string, error) { return parse(text, false) }

// ParseFile is Parse for a file, in which a line that begins with # is a comment.
func ParseFile(text string) (map[string]string, error) { return parse(text, true) }

func parse(text string, comments bool) (map[string]string, error) {
	env, number := map[string]string{}, 0
	next, stop := iter.Pull(strings.Lines(text))
	defer stop()
	read := func() (line string, ok bool) {
		number++
		line, ok = next()
		return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), ok
	}
	for line, ok := read(); ok; line, ok = read() {
		if strings.TrimSpace(line) == "" || comments && strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		e := &Error{Reason: NoValue, Line: number}
		if first, end, many := strings.Cut(line, "<<"); many && validName(first) && validName(end) {
			name, found = first, true
			if value, ok = readUntil(end, read); !ok {
				e.Reason, e.Name = NoEnd, name
				return nil, e
			}
		}
		if !found {
			return nil, e
		}
		if !validName(name) {
			// Not repeated: a secret may be in the wrong place.
			e.Reason = BadName
			return nil, e
		}
		if err := checkVariable(name, value); err != nil {
			e.Reason, e.Name = err.(*Error).Reason, name
			return nil, e
		}
		if _, twice := env[name]; twice {
			e.Reason, e.Name = Twice, name
			return nil, e
		}
		env[name] = value
	}
	return env, checkSize(env)
}

// readUntil returns the lines before the line end; ok is false if there is none.
func readUntil(end string, read func() (string, bool)) (value string, ok bool) {
	var lines []string
	for {
		line, ok := read()
		switch {
		case !ok:
			return "", false
		case line == end:
			return strings.Join(lines, "\n"), true
		}
		lines = append(lines, line)
	}
}

// Format returns the variables as lines that Parse reads, sorted by name.
func Format(env map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		value := env[name]
		if !strings.Contains(value, "\n") {
			b.WriteString(name + "=" + value + "\n")
			continue
		}
		end := "END"
		for lines := strings.Split(value, "\n"); slices.Contains(lines, end); {
			end += "_"
		}
		b.WriteString(name + "<<" + end + "\n" + value + "\n" + end + "\n")
	}
	return b.String()
}

// Digest identifies the variables; that of none is empty.
func Digest(env map[string]string) string {
	if len(env) == 0 {
		return ""
	}
	text, _ := json.Marshal(env) // sorted by name; never fails
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
