// Package feature determines the variables that install.sh of a Feature gets from its options, and
// the order in which Features are installed (https://containers.dev/implementors/features).
package feature

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"

	"codehub/internal/workspace/devcontainer"
)

const (
	// maxFeatures is how many Features a file may have, with those that they depend on.
	maxFeatures = 64
	// maxEnv bounds the variables of a Feature: quoted, they are part of one line of a Dockerfile, which has at
	// most 64 KiB.
	maxEnv = 8 << 10 // bytes
)

// Found is a Feature as it was fetched.
type Found struct {
	devcontainer.Feature
	Metadata devcontainer.Metadata
	Digest   string // of the manifest, or of the folder

	needs []devcontainer.Feature // hard dependencies
	after []string               // names of soft ones
	first int                    // priority
}

// same reports whether it is the Feature of that name with the same options.
func (f *Found) same(o *Found) bool {
	return f.Local == o.Local && maps.Equal(f.Options, o.Options) && (f.Local && f.Reference == o.Reference || !f.Local && f.Name() == o.Name() && f.Digest == o.Digest)
}

// called reports whether it has or had the name. Ids change within a namespace.
func (f *Found) called(name string) bool {
	own := f.Name()
	return own == name || !f.Local && slices.ContainsFunc(f.Metadata.OtherIDs, func(id string) bool { return path.Join(path.Dir(own), id) == name })
}

// Order returns the Features and those that they depend on, in the order in which they are
// installed: after what they depend on (dependsOn), after others that they name (installsAfter), and
// those in first (overrideFeatureInstallOrder) as early as that allows. It calls fetch once for each
// reference with its options. An error of fetch is returned as it is; others are clauses without a
// full stop.
func Order(features []devcontainer.Feature, first []string, fetch func(devcontainer.Feature) (Found, error)) ([]Found, error) {
	var all []*Found
	// of has the Feature of each reference with its options. Dependencies have no digests.
	of := map[string]*Found{}
	for work := slices.Clone(features); len(work) > 0; work = work[1:] {
		key := key(work[0])
		if of[key] != nil {
			continue
		}
		if len(of) == maxFeatures {
			return nil, fmt.Errorf("the file has more than %d Features, with those that they depend on", maxFeatures)
		}
		f, err := fetch(work[0])
		if err != nil {
			return nil, err
		}
		f.Feature = work[0]
		of[key] = &f
		if i := slices.IndexFunc(all, f.same); i >= 0 {
			of[key] = all[i]
			continue
		}
		all = append(all, &f)
		work = append(work, f.Metadata.DependsOn...)
	}
	for _, f := range all {
		f.needs = f.Metadata.DependsOn
		for _, name := range f.Metadata.InstallsAfter {
			if !f.called(name) && slices.ContainsFunc(all, func(o *Found) bool { return o.called(name) }) {
				f.after = append(f.after, name)
			}
		}
		for i, name := range first {
			if f.called(name) {
				f.first = max(f.first, len(first)-i)
			}
		}
	}
	var out []Found
	installed := map[*Found]bool{}
	for len(all) > 0 {
		var round []*Found
		for _, f := range all {
			ready := !slices.ContainsFunc(f.needs, func(need devcontainer.Feature) bool { return !installed[of[key(need)]] })
			for _, name := range f.after {
				ready = ready && slices.ContainsFunc(out, func(o Found) bool { return o.called(name) })
			}
			if ready {
				round = append(round, f)
			}
		}
		if len(round) == 0 {
			names := make([]string, len(all))
			for i, f := range all {
				names[i] = f.Name()
			}
			slices.Sort(names)
			return nil, fmt.Errorf("these Features wait for each other: %s", strings.Join(slices.Compact(names), ", "))
		}
		highest := slices.MaxFunc(round, func(a, b *Found) int { return a.first - b.first }).first
		round = slices.DeleteFunc(round, func(f *Found) bool { return f.first < highest })
		slices.SortStableFunc(round, compare)
		for _, f := range round {
			out = append(out, *f)
			installed[f] = true
		}
		all = slices.DeleteFunc(all, func(f *Found) bool { return installed[f] })
	}
	return out, nil
}

// key is a reference with its options.
func key(f devcontainer.Feature) string {
	return fmt.Sprintf("%v %q %q", f.Local, f.Reference, options(f))
}

// options are the names of the options and their values, in the order of the names.
func options(f devcontainer.Feature) []string {
	names := slices.Sorted(maps.Keys(f.Options))
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = f.Options[name]
	}
	return append(names, values...)
}

// compare orders the Features of a round: by name, version, options and digest.
func compare(a, b *Found) int {
	return cmp.Or(
		strings.Compare(a.Name(), b.Name()),
		compareVersions(version(a.Reference), version(b.Reference)),
		len(b.Options)-len(a.Options),
		slices.Compare(options(a.Feature), options(b.Feature)),
		strings.Compare(a.Digest, b.Digest),
	)
}

func version(of string) string {
	if ref, err := reference.ParseNamed(of); err == nil {
		if tagged, ok := ref.(reference.Tagged); ok {
			return tagged.Tag()
		}
	}
	return "latest"
}

// compareVersions orders versions. "latest" is the newest.
func compareVersions(a, b string) int {
	if a == b {
		return 0
	}
	if a == "latest" || b == "latest" {
		return cmp.Compare(strings.Count(a, "latest"), strings.Count(b, "latest"))
	}
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(a, b string) int {
		n, err := strconv.Atoi(a)
		m, other := strconv.Atoi(b)
		if err != nil || other != nil {
			return strings.Compare(a, b)
		}
		return cmp.Compare(n, m)
	})
}

var (
	noName = regexp.MustCompile(`[^A-Za-z0-9_]`)
	begin  = regexp.MustCompile(`^[0-9_]+`)
)

// Env returns the variables of a Feature's install.sh: its options as given, or their defaults. The
// error is a clause without a full stop.
func Env(f Found) (map[string]string, error) {
	values := map[string]string{}
	for name, o := range f.Metadata.Options {
		values[name] = o.Default
	}
	maps.Copy(values, f.Options)
	env, size := map[string]string{}, 0
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name]
		if enum := f.Metadata.Options[name].Enum; len(enum) > 0 && f.Options[name] != "" && !slices.Contains(enum, value) {
			return nil, fmt.Errorf("the option %q of the Feature %s is %.100q, but has to be one of: %.300s", name, f.Name(), value, strings.Join(enum, ", "))
		}
		if strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("the option %q of the Feature %s has a null character", name, f.Name())
		}
		variable := strings.ToUpper(begin.ReplaceAllString(noName.ReplaceAllString(name, "_"), "_"))
		env[variable] = value
		size += len(variable) + len(value)
	}
	delete(env, "") // of an option without a name
	if size > maxEnv {
		return nil, fmt.Errorf("the options of the Feature %s have more than %d KiB", f.Name(), maxEnv>>10)
	}
	return env, nil
}
