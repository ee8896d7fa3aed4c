package docker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime"
)

func TestEnvironment(t *testing.T) {
	t.Parallel()
	spec := runtime.ContainerSpec{Secret: "s", TimeZone: "Asia/Seoul", Env: map[string]string{"B": "2", "A": "1"}}
	for name, c := range map[string]struct {
		spec runtime.ContainerSpec
		as   runAs
		want []string
	}{
		"time zone":                    {spec, runAs{}, []string{"A=1", "B=2", "HASHED_PASSWORD=s", "TZ=Asia/Seoul"}},
		"time zone of the image":       {spec, runAs{zoned: setsZone([]string{"PATH=/bin", "TZ=UTC"})}, []string{"A=1", "B=2", "HASHED_PASSWORD=s"}},
		"time zone of the variables":   {runtime.ContainerSpec{Secret: "s", TimeZone: "UTC", Env: map[string]string{"TZ": "Asia/Seoul"}}, runAs{}, []string{"HASHED_PASSWORD=s", "TZ=Asia/Seoul"}},
		"image's user is root":         {runtime.ContainerSpec{Secret: "s"}, runAs{env: map[string]string{"HOME": "/home/coder"}}, []string{"HASHED_PASSWORD=s", "HOME=/home/coder"}},
		"home of the workspace user":   {runtime.ContainerSpec{Secret: "s", Env: map[string]string{"HOME": "/x", "SHELL": "/x"}}, runAs{env: map[string]string{"HOME": "/home/coder", "SHELL": "/bin/sh"}}, []string{"HASHED_PASSWORD=s", "HOME=/home/coder", "SHELL=/x"}},
		"codehub's own variables last": {runtime.ContainerSpec{Secret: "s", Env: map[string]string{"HASHED_PASSWORD": "x"}}, runAs{}, []string{"HASHED_PASSWORD=s"}},
	} {
		if d := cmp.Diff(c.want, environment(c.spec, c.as, nil)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
