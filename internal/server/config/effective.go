package config

import (
	"fmt"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/base/setting"
)

// Effective lists all settings, in the order of the help, with what is in effect. Passwords are not
// in it, nor those in addresses.
func (c *Config) Effective() []api.Setting {
	var out []api.Setting
	for f := range Fields() {
		s := api.Setting{Setting: variable(f), From: api.FromDefault}
		_, secret := f.Tag.Lookup("secret")
		s.Value = withoutSecret(shown(reflect.ValueOf(c).Elem().FieldByIndex(f.Index)), secret)
		named := func(suffix string) bool {
			return slices.ContainsFunc(strings.Split(f.Tag.Get("env"), ","), func(name string) bool { return os.Getenv(name+suffix) != "" })
		}
		switch {
		case isFlag(os.Args, f.Tag.Get("name")): // a flag precedes the environment
			s.From = api.FromFlag
		case secret && named(fileSuffix):
			s.From = api.FromFile
		case named(""):
			s.From = api.FromEnvironment
		}
		out = append(out, s)
	}
	return out
}

// Recorded are the settings that are not the defaults, as a backup has them: without secrets, but
// with the names of the files that have secrets.
func (c *Config) Recorded() map[string]string {
	out := map[string]string{}
	for _, s := range c.Effective() {
		switch s.From {
		case api.FromDefault:
		case api.FromFile:
			out[s.Setting+fileSuffix] = os.Getenv(s.Setting + fileSuffix)
		default:
			out[s.Setting] = s.Value
		}
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

// withoutSecret is an address without its password, and of other secrets only whether they are set.
func withoutSecret(value string, secret bool) string {
	u, err := url.Parse(value)
	isAddress := err == nil && u.Host != ""
	switch {
	case secret && value == "":
		return api.SecretNotSet
	case secret && !isAddress:
		return api.SecretSet
	case secret:
		u.RawQuery, u.Fragment = "", "" // PostgreSQL reads a password there, too
		return u.Redacted()
	case isAddress && u.User != nil:
		return u.Redacted()
	}
	return value
}
