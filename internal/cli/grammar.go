package cli

import (
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// grammarOf returns the part of commands that can parse args: a pointer to a struct that
// has the named command and the flags, without the other commands. To build the parser of
// all of them takes longer than most commands run. Where no command is named, or an unknown
// one, all commands are needed for the help or a suggestion.
func grammarOf(commands any, args []string) any {
	all := reflect.ValueOf(commands).Elem()
	if len(args) == 0 || args[0] == completionName {
		return commands
	}
	fields, values, found := only(all, args[0])
	if !found {
		return commands
	}
	grammar := reflect.New(reflect.StructOf(fields))
	for i, v := range values {
		grammar.Elem().Field(i).Set(v)
	}
	return grammar.Interface()
}

// completionName is the command that lists all commands.
const completionName = "completion"

// only collects the field of the command and those of flags, through embedded structs.
func only(commands reflect.Value, command string) (fields []reflect.StructField, values []reflect.Value, found bool) {
	for i := range commands.NumField() {
		f, v := commands.Type().Field(i), commands.Field(i)
		_, isCommand := f.Tag.Lookup("cmd")
		_, isEmbedded := f.Tag.Lookup("embed")
		switch {
		case isEmbedded:
			inner, innerValues, innerFound := only(v, command)
			fields, values, found = append(fields, inner...), append(values, innerValues...), found || innerFound
		case !isCommand:
			fields, values = append(fields, unnamed(f)), append(values, v)
		case slices.Contains(namesOf(f), command):
			fields, values, found = append(fields, unnamed(f)), append(values, v), true
		}
	}
	return fields, values, found
}

// namesOf returns the names of a command as kong reads them from its field.
func namesOf(f reflect.StructField) []string {
	var aliases []string
	if list := f.Tag.Get("aliases"); list != "" {
		aliases = strings.Split(list, ",")
	}
	if name := f.Tag.Get("name"); name != "" {
		return append(aliases, name)
	}
	var name strings.Builder
	for i, r := range f.Name {
		if i > 0 && unicode.IsUpper(r) {
			name.WriteByte('-')
		}
		name.WriteRune(unicode.ToLower(r))
	}
	return append(aliases, name.String())
}

// unnamed makes a field not anonymous, as the type of a struct that is made here cannot
// have the methods of an embedded one.
func unnamed(f reflect.StructField) reflect.StructField {
	return reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag}
}
