package feature

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/testing/harness"
	"codehub/internal/workspace/devcontainer"
)

// TestOrderMatchesCLI compares the order of random Features with that of the reference
// implementation. All have an option: it puts a Feature with fewer options first, unlike the
// specification.
func TestOrderMatchesCLI(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(root, "internal/workspace/devcontainer/testdata/node_modules/@devcontainers/cli/devcontainer.js")
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("no devcontainer CLI for tests: run scripts/setup.sh verify (%v)", err)
	}
	for seed := range uint64(5) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 0))
			dir := t.TempDir()
			write := func(name string, value any) []byte {
				b, err := json.Marshal(value)
				if err == nil {
					err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
				}
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name), b, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			names := func(below int) (list []string) {
				for i := range below {
					if r.IntN(4) == 0 {
						list = append(list, fmt.Sprintf("./f%d", i))
					}
				}
				return list
			}
			features := func(names []string) map[string]any {
				all := map[string]any{}
				for _, n := range names {
					all[n] = map[string]any{"x": fmt.Sprint(r.IntN(3))}
				}
				return all
			}
			metadata := map[string][]byte{}
			const count = 9
			for i := range count {
				name := fmt.Sprintf("f%d", i)
				below := i
				if seed == 0 && i == 0 {
					below = count // a cycle
				}
				m := map[string]any{"id": name, "version": "1.0.0", "dependsOn": features(names(below)), "installsAfter": names(i)}
				metadata[name] = write(".devcontainer/"+name+"/devcontainer-feature.json", m)
			}
			file := write(".devcontainer/devcontainer.json", map[string]any{"image": "x", "features": features(append(names(count), "./f8")), "overrideFeatureInstallOrder": names(count)})

			out, err := exec.Command("node", program, "features", "resolve-dependencies", "--workspace-folder", dir, "--log-level", "error").CombinedOutput()
			text := string(out)
			var theirs struct {
				Order []struct {
					ID      string            `json:"id"`
					Options map[string]string `json:"options"`
				} `json:"installOrder"`
			}
			if i := strings.Index(text, "\n{"); err == nil && i >= 0 {
				err = json.Unmarshal([]byte(text[i:]), &theirs)
			}
			if err != nil && seed != 0 {
				t.Fatalf("%v: %s", err, out)
			}
			var want, got []string
			for _, f := range theirs.Order {
				want = append(want, f.ID+f.Options["x"])
			}
			place := devcontainer.Place{Repository: dir, Builds: true}
			e, err := devcontainer.Parse(".devcontainer/devcontainer.json", file, place)
			if err != nil {
				t.Fatal(err)
			}
			list, err := Order(e.Features, e.FeatureOrder, func(f devcontainer.Feature) (Found, error) {
				m, err := devcontainer.ParseFeature(metadata[filepath.Base(f.Reference)], ".devcontainer/devcontainer.json", place, dir)
				return Found{Metadata: m}, err
			})
			if (err != nil) != (len(want) == 0) {
				t.Errorf("%v, but the CLI has %v: %s", err, want, out)
			}
			for _, f := range list {
				got = append(got, "./"+filepath.Base(f.Reference)+f.Options["x"])
			}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("%v, but the CLI has %v", got, want)
			}
		})
	}
}
