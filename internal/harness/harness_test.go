package harness

import (
	"io/fs"
	"os"
	"path/filepath"
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
		if filepath.Dir(path) != filepath.Join(root, "internal", "harness", "browser") {
			t.Errorf("%s starts Chromium: use internal/harness/browser", path)
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

func TestNeedsSkipsWhatIsMissing(t *testing.T) {
	for _, test := range []struct {
		without        string
		docker, chrome bool
	}{{"", false, false}, {"docker", true, false}, {"docker chromium", true, true}} {
		t.Run("without "+test.without, func(t *testing.T) {
			t.Setenv(Without, test.without)
			skipped := func(needs func(testing.TB)) (is bool) {
				t.Run("test", func(t *testing.T) {
					defer func() { is = t.Skipped() }()
					needs(t)
				})
				return is
			}
			if got := skipped(NeedsDocker); got != test.docker {
				t.Errorf("NeedsDocker skips: %v", got)
			}
			if got := skipped(NeedsChromium); got != test.chrome {
				t.Errorf("NeedsChromium skips: %v", got)
			}
		})
	}
}
