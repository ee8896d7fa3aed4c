package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A test that uses Docker without NeedsDocker fails in make check, because
// there is no Docker. Chromium would start there, so only package browser,
// which calls NeedsChromium, may start it.
func TestOnlyHarnessStartsChromium(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	starts := "NewExec" + "Allocator("
	found := 0
	err = filepath.WalkDir(filepath.Join(root, "internal"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(source), starts) {
			return err
		}
		if filepath.Dir(path) != filepath.Join(root, "internal", "testing", "harness", "browser") {
			t.Errorf("%s starts Chromium: use internal/testing/harness/browser", path)
		}
		found++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("no file starts Chromium: correct this test")
	}
}

func TestTiers(t *testing.T) {
	marks := map[string]func(testing.TB){"verify": Verify, "docker": NeedsDocker, "chromium": NeedsChromium}
	for tier, want := range map[string]string{"check": "[chromium docker verify]", "test": "[verify]", "verify": "[]", "": "[]"} {
		t.Run("tier "+tier, func(t *testing.T) {
			t.Setenv(Tier, tier)
			left := []string{}
			for name, mark := range marks {
				t.Run("test", func(t *testing.T) {
					defer func() {
						if t.Skipped() {
							left = append(left, name)
						}
					}()
					mark(t)
				})
			}
			slices.Sort(left)
			if got := fmt.Sprint(left); got != want {
				t.Errorf("left out: %s, want %s", got, want)
			}
		})
	}
}
