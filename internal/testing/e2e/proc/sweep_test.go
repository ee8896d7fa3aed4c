package proc

import (
	"strings"
	"testing"
)

// Only the end of a long log is kept, and the installation's id is at its
// beginning.
func TestInstallationIsRemembered(t *testing.T) {
	t.Parallel()
	s := &Server{log: &tail{}}
	if s.Installation() != "" {
		t.Fatal("Installation returned an id that is not in the log")
	}
	const id = "2f5527f6-4f1e-4729-b824-7bb1661dcaaf"
	for _, line := range []string{"level=INFO msg=installation id=" + id + "\n", strings.Repeat("x", 2<<20)} {
		if _, err := s.log.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if got := s.Installation(); got != id {
			t.Errorf("installation %q, want %q", got, id)
		}
	}
}
