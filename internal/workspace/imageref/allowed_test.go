package imageref_test

import (
	"strings"
	"testing"

	"codehub/internal/workspace/imageref"
)

const digest = "sha256:0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"

// spellings are references that Docker reads as the same one.
var spellings = map[string][]string{
	"python":                             {"python:latest", "library/python", "docker.io/python", "docker.io/library/python", "index.docker.io/python", "index.docker.io/library/python:latest"},
	"python:3@" + digest:                 {"python@" + digest, "docker.io/library/python:other@" + digest},
	"registry.example.com:5000/team/a:1": {"Registry.Example.COM:5000/team/a:1"},
	"company/tool":                       {"docker.io/company/tool", "docker.io/company/tool:latest"},
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list    string
		allowed []string
		refused []string
	}{
		{"", []string{"tool", "a:1", "registry.example.com/a:1", "python@" + digest}, []string{"a", "cafe", "sha256:cafe", strings.TrimPrefix(digest, "sha256:")}},
		{"**", []string{"tool", "localhost/a", "registry.example.com:5000/a/b/c:1", "a@" + digest}, []string{"", "--privileged"}},
		// What Docker may read as an ID.
		{"**,cafe,sha256", []string{"cafe:1", "cafe@" + digest, "user/cafe", "cafes", "localhost/sha256:cafe", "registry.example.com/cafe"},
			[]string{"cafe", "cafe:latest", "docker.io/library/cafe", "a", "0a0a", "sha256", "sha256:cafe", "docker.io/library/sha256:0a", digest, strings.TrimPrefix(digest, "sha256:")}},
		{"python", []string{"python", "python:3.13", "python@" + digest, "docker.io/library/python:3"},
			[]string{"pythons", "user/python", "python/python", "registry.example.com/python", "registry.example.com/library/python", "localhost/python", "docker.io:443/library/python", "docker.io.example.com/library/python"}},
		{"python:3.*", []string{"python:3.13", "docker.io/library/python:3.13-slim"},
			[]string{"python", "python:latest", "python:31", "python:2", "python@" + digest, "python:3.13@" + digest}},
		{"python:latest", []string{"python", "python:latest"}, []string{"python:3", "python:latest@" + digest}},
		{"python@" + digest, []string{"python@" + digest, "python:3@" + digest}, []string{"python", "python:3", "golang@" + digest, "python@" + strings.Replace(digest, "0a", "0b", 1)}},
		{"company/*", []string{"company/a", "company/a:1"}, []string{"company", "company/a/b", "companyx/a", "x/company/a", "registry.example.com/company/a"}},
		{"company/**", []string{"company/a", "company/a/b"}, []string{"company", "registry.example.com/company/a"}},
		{"registry.example.com/team/*", []string{"registry.example.com/team/a:1", "REGISTRY.example.com/team/a"},
			[]string{"registry.example.com/team/a/b", "registry.example.com/a", "registry.example.com:5000/team/a", "evil.registry.example.com/team/a",
				"registryxexample.com/team/a", "registry.example.com.evil.test/team/a", "evil.test/registry.example.com/team/a", "docker.io/registry.example.com/team/a"}},
		{"registry.example.com:5000/**", []string{"registry.example.com:5000/a/b"}, []string{"registry.example.com/a", "registry.example.com:50000/a"}},
		{"*.example.com/**", []string{"a.example.com/x", "a.b.example.com/x/y:1"}, []string{"example.com/x", "a.example.com:5000/x", "a.example.com.evil.test/x", "evil.test/a.example.com/x"}},
		{"docker.io/**", []string{"python", "company/a/b"}, []string{"registry.example.com/a", "localhost/a"}},
		{"docker.io/*", []string{"python"}, []string{"company/a"}},
		{"*", []string{"python"}, []string{"company/a", "localhost/a", "registry.example.com/a"}},
		{"**/python", []string{"python", "registry.example.com/a/python:1"}, []string{"pythons", "registry.example.com/pythons"}},
		{"localhost/*", []string{"localhost/a"}, []string{"localhost:5000/a", "a", "127.0.0.1/a"}},
		{" golang , node:24 ,", []string{"golang", "golang:1", "node:24"}, []string{"node", "node:2", "python"}},
	} {
		a, err := imageref.ParseAllowed(c.list, "")
		if err != nil {
			t.Fatalf("%q: %v", c.list, err)
		}
		for _, s := range c.allowed {
			if !a.Allows(s, "") {
				t.Errorf("%q refuses %q", c.list, s)
			}
		}
		for _, s := range c.refused {
			if a.Allows(s, "") {
				t.Errorf("%q allows %q", c.list, s)
			}
		}
		for s, same := range spellings {
			for _, other := range same {
				if a.Allows(s, "") != a.Allows(other, "") {
					t.Errorf("%q: %q and %q differ", c.list, s, other)
				}
			}
		}
	}
}

func TestDefaultImageIsAlwaysAllowed(t *testing.T) {
	t.Parallel()
	a, err := imageref.ParseAllowed("registry.example.com/*", "codehub/workspace:latest")
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{
		"codehub/workspace": true, "docker.io/codehub/workspace:latest": true, "registry.example.com/a": true,
		"codehub/workspace:1": false, "codehub/workspace:latest@" + digest: false, "codehub/other": false, "": false,
	} {
		if a.Allows(s, "") != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
	if s := a.String(); s != "registry.example.com/*" || len(a.Patterns()) != 1 {
		t.Errorf("patterns: %q", s)
	}
}

// Only the user for whom an image was built from a devcontainer.json may choose it, with any patterns.
// A workspace that has it starts.
func TestBuiltImageIsItsOwners(t *testing.T) {
	t.Parallel()
	const own = "codehub/devcontainer/ann"
	for _, list := range []string{"", "**", "python"} {
		a, err := imageref.ParseAllowed(list, own+":1")
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{own, own + ":1", "docker.io/" + own + ":1", "index.docker.io/" + own} {
			if owner, ok := imageref.BuiltFor(s); owner != "ann" || !ok {
				t.Errorf("BuiltFor(%q) = %q, %v", s, owner, ok)
			}
			if !a.Allows(s, "ann") || a.Allows(s, "an") || a.Allows(s, "annx") || a.Allows(s, "") || a.CheckStart(s) != nil {
				t.Errorf("%q: %q", list, s)
			}
		}
		if a.Allows(own+"/more", "ann") {
			t.Errorf("%q allows another name", list)
		}
		// One with a digest is of a registry, which nodes would download.
		for _, s := range []string{own + "@" + digest, own + ":1@" + digest} {
			if a.Allows(s, "ann") || a.CheckStart(s) == nil {
				t.Errorf("%q: %q", list, s)
			}
		}
		if a.Allows("golang", "ann") != (list != "python") || (a.CheckStart("golang") == nil) != (list != "python") {
			t.Errorf("%q: golang", list)
		}
		err = a.Check(own, "bob")
		if err == nil || strings.Contains(err.Error(), imageref.MsgAllowed) != (list != "") {
			t.Errorf("%q: %v", list, err)
		}
	}
	for _, s := range []string{"", "a", "codehub/devcontainer", "codehub/devcontainers/ann", "localhost/" + own, "registry.example.com/" + own, "x/" + own} {
		if owner, ok := imageref.BuiltFor(s); ok {
			t.Errorf("BuiltFor(%q) = %q", s, owner)
		}
	}
}

func TestWrongPatterns(t *testing.T) {
	t.Parallel()
	for _, list := range []string{
		"Python", "a b", "https://registry.example.com/a", "/a", "a/", "a//b", "a:", "python@sha256:*", "python:3@" + digest, "***",
		"registry.example.com/", "a@" + digest[:20], "..", "python,-rf", "pyth\x00on", "[a-z]", "a?",
	} {
		if a, err := imageref.ParseAllowed(list, ""); err == nil {
			t.Errorf("%q gives %v", list, a.Patterns())
		}
	}
}

func TestRegistryAndDigests(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"a": "docker.io", "a/b:1": "docker.io", "index.docker.io/a": "docker.io", "Registry.example.com:5000/a": "registry.example.com:5000",
		"localhost/a": "localhost", "": "",
	} {
		if got := imageref.Registry(s); got != want {
			t.Errorf("Registry(%q) = %q", s, got)
		}
	}
	if got := imageref.WithDigest("docker.io/library/python:3", digest); got != "python@"+digest {
		t.Error(got)
	}
	list := []string{"registry.example.com/python@" + digest, "python@" + strings.Replace(digest, "0a", "0b", 1), "broken"}
	if got := imageref.DigestIn(list, "registry.example.com/python:3"); got != digest {
		t.Error(got)
	}
	if got := imageref.DigestIn(list, "golang"); got != "" {
		t.Error(got)
	}
}

// No spelling of a reference changes the answer: the canonical form of what is allowed
// is allowed, and only its own registry and repository decide.
func FuzzAllowed(f *testing.F) {
	const team = "registry.example.com/team/"
	for _, s := range []string{"python", team + "a:1", "REGISTRY.example.com/team/a@" + digest, "docker.io/" + team + "a", "index.docker.io/library/python:3"} {
		f.Add(s)
	}
	a, err := imageref.ParseAllowed("python:3*, "+team+"*", "")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !a.Allows(s, "") {
			return
		}
		if !imageref.Valid(s) {
			t.Fatalf("%q is allowed and not valid", s)
		}
		switch registry := imageref.Registry(s); registry {
		case "docker.io":
			if !strings.Contains(s, "python:3") || strings.Contains(s, "@") {
				t.Fatalf("%q is allowed", s)
			}
		case "registry.example.com":
			if !strings.HasPrefix(strings.ToLower(s), team) || strings.Count(s, "/") != 2 {
				t.Fatalf("%q is allowed", s)
			}
		default:
			t.Fatalf("%q of %s is allowed", s, registry)
		}
	})
}
