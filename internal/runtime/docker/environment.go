package docker

import (
	"maps"
	"slices"
	"strings"

	"codehub/internal/runtime"
)

// environment returns the variables of a workspace's container that Docker adds to
// those of its image, sorted by name. They replace defaults, and codehub's own come last
// in order of precedence.
func environment(spec runtime.ContainerSpec, as runAs, defaults []string) []string {
	env := maps.Clone(as.env)
	if env == nil {
		env = map[string]string{}
	}
	for _, variable := range defaults {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	if spec.TimeZone != "" && !as.zoned {
		env["TZ"] = spec.TimeZone
	}
	maps.Copy(env, spec.Env)
	if home, ok := as.env["HOME"]; ok {
		env["HOME"] = home // a workspace has its files there
	}
	env[runtime.SecretEnv] = spec.Secret
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}

// setsZone reports whether an image with these variables sets the time zone.
func setsZone(env []string) bool {
	return slices.ContainsFunc(env, func(s string) bool { return strings.HasPrefix(s, "TZ=") })
}
