package internal

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	contract = regexp.MustCompile(`(?m)^(\d+)\. \*\*`)
	row      = regexp.MustCompile(`(?m)^\| (\d+) \| (.*) \|$`)
	named    = regexp.MustCompile("`(Test\\w+)` in `([\\w/]+)`")
)

// Each contract of docs/contracts.md has a test that make test runs, which docs/testing.md names.
func TestContractsHaveTests(t *testing.T) {
	t.Parallel()
	shown := map[string]string{}
	for _, match := range row.FindAllStringSubmatch(readFile(t, "../docs/testing.md"), -1) {
		shown[match[1]] = match[2]
	}
	contracts := contract.FindAllStringSubmatch(readFile(t, "../docs/contracts.md"), -1)
	if len(contracts) < 21 {
		t.Fatalf("docs/contracts.md has %d contracts: correct this test", len(contracts))
	}
	for _, match := range contracts {
		tests := named.FindAllStringSubmatch(shown[match[1]], -1)
		if len(tests) == 0 {
			t.Errorf("docs/testing.md names no test of contract %s", match[1])
		}
		for _, test := range tests {
			if !runs(t, "../"+test[2], test[1]) {
				t.Errorf("contract %s: make test runs no %s in %s", match[1], test[1], test[2])
			}
		}
	}
}

// runs reports whether a package has this test, and not only for make verify.
func runs(t *testing.T, folder, test string) bool {
	files, err := filepath.Glob(folder + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, source, found := strings.Cut(readFile(t, file), "\nfunc "+test+"("); found {
			body, _, _ := strings.Cut(source, "\n}\n")
			return !strings.Contains(body, "\n\tharness.Verify(t)\n")
		}
	}
	return false
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
