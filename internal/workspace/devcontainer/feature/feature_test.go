package feature

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace/devcontainer"
)

// registry has Features by their references.
type registry map[string]devcontainer.Metadata

var errMissing = errors.New("there is no such Feature")

func (r registry) fetch(f devcontainer.Feature) (Found, error) {
	m, ok := r[f.Reference]
	if !ok {
		return Found{}, errMissing
	}
	return Found{Metadata: m, Digest: "sha256:" + m.ID}, nil
}

func of(references ...string) (list []devcontainer.Feature) {
	for _, r := range references {
		list = append(list, devcontainer.Feature{Reference: "r.io/" + r})
	}
	return list
}

func TestOrder(t *testing.T) {
	t.Parallel()
	long := registry{}
	for i := range maxFeatures + 1 {
		long[fmt.Sprintf("r.io/f%d", i)] = devcontainer.Metadata{ID: fmt.Sprint(i), DependsOn: of(fmt.Sprintf("f%d", i+1))}
	}
	with := func(f devcontainer.Feature, options ...string) devcontainer.Feature {
		f.Options = map[string]string{}
		for i := 0; i < len(options); i += 2 {
			f.Options[options[i]] = options[i+1]
		}
		return f
	}
	for name, test := range map[string]struct {
		registry registry
		features []devcontainer.Feature
		first    []string
		want     string // "!": an error with the text
	}{
		"names":        {registry{"r.io/b": {ID: "1"}, "r.io/a": {ID: "2"}, "r.io/c": {ID: "3"}}, of("b", "c", "a"), nil, "a b c"},
		"depends":      {registry{"r.io/a": {DependsOn: of("b:1")}, "r.io/b:1": {ID: "1", DependsOn: of("c")}, "r.io/c": {ID: "2"}, "r.io/d": {ID: "3"}}, of("a", "d"), nil, "c d b:1 a"},
		"diamond":      {registry{"r.io/a": {DependsOn: of("b", "c")}, "r.io/b": {ID: "1", DependsOn: of("d")}, "r.io/c": {ID: "2", DependsOn: of("d")}, "r.io/d": {ID: "3"}}, of("a"), nil, "d b c a"},
		"after":        {registry{"r.io/a:1": {InstallsAfter: []string{"r.io/b", "r.io/none", "r.io/a"}}, "r.io/b:2": {ID: "1"}}, of("a:1", "b:2"), nil, "b:2 a:1"},
		"former id":    {registry{"r.io/n/a": {InstallsAfter: []string{"r.io/n/old"}}, "r.io/n/new": {ID: "1", OtherIDs: []string{"old"}}}, of("n/a", "n/new"), nil, "n/new n/a"},
		"first":        {registry{"r.io/a": {}, "r.io/b": {ID: "1"}, "r.io/c": {ID: "2", DependsOn: of("a")}, "r.io/d:1": {ID: "3"}}, of("a", "b", "c", "d:1"), []string{"r.io/d", "r.io/c", "r.io/none"}, "d:1 a b c"},
		"local":        {registry{"x/b": {}, "x/a": {ID: "1", InstallsAfter: []string{"./x/b"}}}, []devcontainer.Feature{{Reference: "x/a", Local: true}, {Reference: "x/b", Local: true}}, nil, "x/b x/a"},
		"versions":     {registry{"r.io/a": {ID: "9"}, "r.io/a:1.10": {ID: "1"}, "r.io/a:1.9": {ID: "2"}, "r.io/a:1": {ID: "3"}}, of("a", "a:1.10", "a:1.9", "a:1"), nil, "a:1 a:1.9 a:1.10 a"},
		"same digest":  {registry{"r.io/a:1": {ID: "1"}, "r.io/a:1.2": {ID: "1"}, "r.io/b": {DependsOn: of("a:1.2")}}, of("a:1", "b"), nil, "a:1 b"},
		"options":      {registry{"r.io/a": {ID: "1"}}, []devcontainer.Feature{of("a")[0], with(of("a")[0], "x", "2"), with(of("a")[0], "x", "1"), with(of("a")[0], "y", "1", "z", "1"), with(of("a")[0], "x", "1")}, nil, "a y1z1 a x1 a x2 a"},
		"cycle":        {registry{"r.io/a": {DependsOn: of("b")}, "r.io/b": {ID: "1", DependsOn: of("a")}, "r.io/c": {ID: "2"}}, of("c", "a"), nil, "!wait for each other: r.io/a, r.io/b"},
		"soft cycle":   {registry{"r.io/a:1": {InstallsAfter: []string{"r.io/b"}}, "r.io/b": {ID: "1", InstallsAfter: []string{"r.io/a"}}}, of("a:1", "b"), nil, "!wait for each other: r.io/a, r.io/b"},
		"on itself":    {registry{"r.io/a": {DependsOn: of("a")}}, of("a"), nil, "!wait for each other: r.io/a"},
		"long":         {long, of("f0"), nil, "!more than 64 Features"},
		"missing":      {registry{"r.io/a": {DependsOn: of("b")}}, of("a"), nil, "!no such Feature"},
		"none":         {registry{}, nil, nil, ""},
		"other digest": {registry{"r.io/a:1": {ID: "2"}, "r.io/a": {ID: "1"}, "r.io/b": {DependsOn: of("a")}}, of("a:1", "b"), nil, "a:1 a b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := Order(test.features, test.first, test.registry.fetch)
			if problem, fails := strings.CutPrefix(test.want, "!"); fails || err != nil {
				if err == nil || !fails || !strings.Contains(err.Error(), problem) {
					t.Errorf("%v, want %s", err, test.want)
				}
				return
			}
			var got []string
			for _, f := range list {
				got = append(got, strings.TrimPrefix(f.Reference, "r.io/"))
				if options := options(f.Feature); len(options) > 0 {
					got = append(got, fmt.Sprint(strings.Join(options[:len(options)/2], "1"), options[len(options)-1]))
				}
			}
			if d := cmp.Diff(test.want, strings.Join(got, " ")); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestEnv(t *testing.T) {
	t.Parallel()
	options := map[string]devcontainer.Option{
		"version": {Default: "latest", Enum: []string{"latest", "1.2"}}, "install-zsh": {Default: "true"}, "3.x_y": {}, "__z": {Default: "a'b"}, "é": {Default: "e"},
	}
	for name, test := range map[string]struct {
		given map[string]string
		want  map[string]string
		err   string
	}{
		"defaults": {nil, map[string]string{"VERSION": "latest", "INSTALL_ZSH": "true", "_X_Y": "", "_Z": "a'b", "_": "e"}, ""},
		"given":    {map[string]string{"version": "1.2", "other": "x\ny"}, map[string]string{"VERSION": "1.2", "INSTALL_ZSH": "true", "_X_Y": "", "_Z": "a'b", "_": "e", "OTHER": "x\ny"}, ""},
		"enum":     {map[string]string{"version": "3"}, nil, `is "3", but has to be one of: latest, 1.2`},
		"null":     {map[string]string{"a": "\x00"}, nil, "null character"},
		"long":     {map[string]string{"a": strings.Repeat("x", maxEnv)}, nil, "more than 8 KiB"},
	} {
		got, err := Env(Found{Feature: devcontainer.Feature{Reference: "r.io/a:1", Options: test.given}, Metadata: devcontainer.Metadata{Options: options}})
		if err == nil && test.err != "" || err != nil && (test.err == "" || !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(test.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
