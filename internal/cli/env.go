package cli

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"codehub/api"
)

type envFlag struct {
	Env []string `placeholder:"NAME=VALUE" sep:"none" help:"Set an environment variable, from the next start on; NAME alone takes its value from codehub's environment."`
}

// variables returns the given variables. lookup finds the value of a name that is
// given alone, so that a secret need not be an argument.
func (f envFlag) variables(lookup func(string) (string, bool)) (map[string]string, error) {
	if len(f.Env) == 0 {
		return nil, nil
	}
	env := map[string]string{}
	for _, given := range f.Env {
		name, value, found := strings.Cut(given, "=")
		if !found {
			if value, found = lookup(name); !found {
				return nil, fmt.Errorf("the environment variable %s is not set here; give --env %s=VALUE", name, name)
			}
		}
		if _, twice := env[name]; twice {
			return nil, fmt.Errorf("the environment variable %s is given twice", name)
		}
		env[name] = value
	}
	return env, nil
}

// environment lists the names of a workspace's environment variables; the values
// may be secrets.
func environment(w api.Workspace) string {
	names := strings.Join(slices.Sorted(maps.Keys(w.Env)), ", ")
	if !w.EnvWaits {
		return names
	}
	if names == "" {
		names = "none"
	}
	return names + ", from the next start on"
}

// zoneinfo is the folder of time zones in the paths to which /etc/localtime leads.
const zoneinfo = "/zoneinfo/"

// timeZone returns this machine's time zone as an IANA name, or "" if it is not
// known: that of TZ, or else that of /etc/localtime or /etc/timezone.
func timeZone(tz string, root fs.FS) string {
	if tz = strings.TrimPrefix(tz, ":"); tz != "" {
		return zoneName(tz)
	}
	if target, err := fs.ReadLink(root, "etc/localtime"); err == nil {
		if _, name, found := strings.Cut(target, zoneinfo); found {
			return zoneName(name)
		}
	}
	text, err := fs.ReadFile(root, "etc/timezone")
	if err != nil {
		return ""
	}
	return zoneName(strings.TrimSpace(string(text)))
}

// zoneName returns name if it has the form of an IANA name, otherwise "".
func zoneName(name string) string {
	if name == "Local" {
		return ""
	}
	if _, err := time.LoadLocation(name); err != nil || strings.HasPrefix(name, "/") {
		return ""
	}
	return name
}
