package archivetest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Diff returns the first hundred differences of two homes, one entry per line,
// sorted by name. It is empty if they are equal.
func Diff(before, after map[string]State) string {
	names := map[string]bool{}
	for _, states := range []map[string]State{before, after} {
		for name := range states {
			names[name] = true
		}
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b, was := before[name]
		a, is := after[name]
		switch {
		case !is:
			lines = append(lines, fmt.Sprintf("%s is missing", quoted(name)))
		case !was:
			lines = append(lines, fmt.Sprintf("%s was not there before", quoted(name)))
		default:
			for _, d := range b.differs(a) {
				lines = append(lines, quoted(name)+": "+d)
			}
		}
	}
	if more := len(lines) - 100; more > 0 {
		lines = append(lines[:100], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// differs names the fields in which two states differ.
func (s State) differs(from State) []string {
	var out []string
	a, b := reflect.ValueOf(s), reflect.ValueOf(from)
	for i := range a.NumField() {
		x, y := a.Field(i).Interface(), b.Field(i).Interface()
		if reflect.DeepEqual(x, y) {
			continue
		}
		name, verb := a.Type().Field(i).Name, "%v"
		switch x.(type) {
		case string, map[string]string:
			verb = "%q"
		}
		if name == "Mode" {
			verb = "%o"
		}
		out = append(out, fmt.Sprintf("%s is "+verb+", was "+verb, strings.ToLower(name), y, x))
	}
	return out
}

// quoted returns a name quoted and shortened.
func quoted(name string) string {
	if len(name) > 120 {
		name = name[:60] + "…" + name[len(name)-50:]
	}
	return fmt.Sprintf("%q", name)
}

// WithoutAtimes clears the access times, for homes that were read in between.
func WithoutAtimes(states map[string]State) map[string]State {
	out := maps.Clone(states)
	for name, s := range out {
		s.Atime = ""
		out[name] = s
	}
	return out
}
