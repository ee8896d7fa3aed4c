package recipe

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/workspace/devcontainer"
)

func TestFeatures(t *testing.T) {
	t.Parallel()
	got := Features("codehub/x:1", []Install{
		{Name: "ghcr.io/a/go", Dir: "features/0", Env: map[string]string{"VERSION": "it's $(x)\n\"`", "B": ""}, ContainerEnv: []devcontainer.Variable{{Name: "GOROOT", Value: "/go"}, {Name: "PATH", Value: `${GOROOT}/bin:${PATH} "\`}}},
		{Name: "./b", Dir: "features/1"},
	}, []byte("x"))
	var text, scripts []string
	for line := range strings.Lines(strings.Replace(got, Trust([]byte("x")), "AUTHORITIES\n", 1)) {
		list, isRun := strings.CutPrefix(line, "RUN ")
		if !isRun {
			text = append(text, strings.TrimSuffix(line, "\n"))
			continue
		}
		text = append(text, "RUN")
		var words []string
		if err := json.Unmarshal([]byte(list), &words); err != nil || len(words) != 3 {
			t.Fatalf("%v: %s", err, line)
		}
		if out, err := exec.Command("sh", "-n", "-c", words[2]).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		scripts = append(scripts, words[2])
	}
	if d := cmp.Diff([]string{"FROM codehub/x:1", "AUTHORITIES", "USER root", "RUN", `ENV GOROOT="/go"`, `ENV PATH="${GOROOT}/bin:${PATH} \"\\"`, "COPY features/0 /tmp/codehub-features/0", "RUN", "COPY features/1 /tmp/codehub-features/1", "RUN", "USER 1000:1000"}, text); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(`# Install "ghcr.io/a/go"
set -e
export B=''
export HOME='/root'
export USER='root'
export VERSION='it'\''s $(x)
"`+"`"+`'
export _CONTAINER_USER='coder'
export _CONTAINER_USER_HOME='/home/coder'
export _REMOTE_USER='coder'
export _REMOTE_USER_HOME='/home/coder'
cd /tmp/codehub-features/0
chmod -R 0755 .
./install.sh
cd /
rm -rf /tmp/codehub-features/0`, scripts[1]); d != "" {
		t.Error(d)
	}
	if file, err := Read(got, nil); err != nil || strings.Join(file.Images, " ") != "codehub/x:1" || file.Text("") != got {
		t.Errorf("%+v, %v", file, err)
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	inputs := func(change func(*Inputs)) string {
		i := Inputs{
			Images: map[string]string{"a": "sha256:1"}, Context: "c", Dockerfile: "FROM a", Target: "t", Args: map[string]string{"A": "1", "B": "2"}, Base: "a",
			Installs: []Install{{Name: "f", Dir: "0", Digest: "d", Env: map[string]string{"V": "1"}}, {Name: "g", Dir: "1", Digest: "d"}}, Authorities: []byte("x"),
		}
		change(&i)
		return i.Digest()
	}
	same := inputs(func(*Inputs) {})
	if len(same) != 32 || same != inputs(func(i *Inputs) { i.Args = map[string]string{"B": "2", "A": "1"} }) {
		t.Errorf("%q is not canonical", same)
	}
	seen := map[string]string{same: "none"}
	for name, change := range map[string]func(*Inputs){
		"image":       func(i *Inputs) { i.Images["a"] = "sha256:2" },
		"context":     func(i *Inputs) { i.Context = "d" },
		"Dockerfile":  func(i *Inputs) { i.Dockerfile = "FROM b" },
		"target":      func(i *Inputs) { i.Target = "" },
		"args":        func(i *Inputs) { i.Args["A"] = "2" },
		"base":        func(i *Inputs) { i.Base = "b" },
		"order":       func(i *Inputs) { i.Installs[0], i.Installs[1] = i.Installs[1], i.Installs[0] },
		"option":      func(i *Inputs) { i.Installs[0].Env["V"] = "2" },
		"variable":    func(i *Inputs) { i.Installs[0].ContainerEnv = []devcontainer.Variable{{Name: "A", Value: "1"}} },
		"Feature":     func(i *Inputs) { i.Installs[0].Digest = "e" },
		"fewer":       func(i *Inputs) { i.Installs = i.Installs[:1] },
		"authorities": func(i *Inputs) { i.Authorities = []byte("y") },
		"none":        func(i *Inputs) { i.Authorities = nil },
	} {
		digest := inputs(change)
		if other, twice := seen[digest]; twice {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[digest] = name
	}
}
