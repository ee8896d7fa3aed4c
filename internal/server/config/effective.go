package config

import (
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"codehub/internal/base/setting"
)

// Origins of a setting's value.
const (
	FromDefault     = "default"
	FromEnvironment = "environment"
	FromFile        = "file" // the variable with _FILE names it
	FromFlag        = "flag"
)

// Effective is one setting and what is in effect.
type Effective struct {
	Variable string `json:"variable"`
	Value    string `json:"value"` // as it is set; without secrets
	From     string `json:"from"`  // one of the From constants
}

// Effective lists all settings by their variables, in the order of the help. Passwords are not in
// it, nor those in addresses.
func (c *Config) Effective() []Effective {
	var out []Effective
	for f := range Fields() {
		v := reflect.ValueOf(c).Elem().FieldByIndex(f.Index)
		e := Effective{Variable: variable(f), Value: shown(v), From: FromDefault}
		if _, secret := f.Tag.Lookup("secret"); secret {
			e.Value = withoutSecret(e.Value)
		}
		named := func(suffix string) bool {
			return slices.ContainsFunc(strings.Split(f.Tag.Get("env"), ","), func(name string) bool { return os.Getenv(name+suffix) != "" })
		}
		switch {
		case named(fileSuffix) && slices.Contains(secrets(), e.Variable):
			e.From = FromFile
		case named(""):
			e.From = FromEnvironment
		case isFlag(os.Args, f.Tag.Get("name")):
			e.From = FromFlag
		}
		out = append(out, e)
	}
	return out
}

// isFlag reports whether a setting was given as a flag of the command line.
func isFlag(args []string, name string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		given, _, _ := strings.Cut(a, "=")
		return given == "--"+name || given == "--no-"+name
	})
}

// shown formats a value as settings are written.
func shown(v reflect.Value) string {
	if d, ok := v.Interface().(time.Duration); ok {
		return setting.Duration(d)
	}
	if v.Kind() == reflect.Slice {
		var parts []string
		for i := range v.Len() {
			parts = append(parts, shown(v.Index(i)))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(v.Interface())
}

// withoutSecret is an address without its password, and "(set)" for other secrets.
func withoutSecret(value string) string {
	if u, err := url.Parse(value); err == nil && u.Host != "" {
		return u.Redacted()
	}
	if value != "" {
		return "(set)"
	}
	return ""
}
