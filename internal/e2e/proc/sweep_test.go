package proc

import (
	"strings"
	"testing"
)

// Of a long log only the end is kept, and what labels everything is said at
// its beginning.
func TestInstallationIsRemembered(t *testing.T) {
	t.Parallel()
	s := &Server{log: &tail{}}
	if s.Installation() != "" {
		t.Fatal("it knows an id that nobody has said")
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
