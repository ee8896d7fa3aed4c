package devcontainers

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"codehub/internal/postgres"
)

// The log is the end of what a build has printed, in whole lines, and every text is UTF-8.
func TestProgress(t *testing.T) {
	t.Parallel()
	p := &progress{}
	p.line("Step 1/2 : RUN echo " + strings.Repeat("한", maxStep))
	if step := p.now().Step; !utf8.ValidString(step) || len(step) > maxStep || !strings.HasPrefix(step, "Step 1/2 : RUN echo 한") {
		t.Errorf("step %q", step)
	}
	line := strings.Repeat("y", 99)
	for range 10 * maxLog / len(line) {
		p.line(line)
	}
	p.line("last\x00\x1b\xff")
	lines := strings.Split(p.now().Log, "\n")
	if n := len(p.now().Log); n > maxLog || n < maxLog-2*len(line) || lines[0] != line || lines[len(lines)-2] != "last\uFFFD" || cap(p.log) > 4*maxLog {
		t.Errorf("%d bytes, %q to %q", n, lines[0], lines[len(lines)-2:])
	}
}

// What a repository names may begin with any character.
func TestErrorsOfBuilds(t *testing.T) {
	t.Parallel()
	for clause, want := range map[string]string{"한글/Dockerfile: line 1": "한글/Dockerfile: line 1.", "it failed": "It failed.", "": "\uFFFD."} {
		if state, got := ended(unusable("%s", clause), nil); state != postgres.BuildFailed || got != want {
			t.Errorf("%q: %s, %q", clause, state, got)
		}
	}
	// What only administrators should read.
	if _, got := ended(errors.New("open /srv/codehub/builds: EACCES"), nil); strings.Contains(got, "/srv") {
		t.Errorf("%q", got)
	}
}
