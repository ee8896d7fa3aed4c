package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"codehub/api"
	"codehub/internal/cli/terminal"
)

// meter shows progress in one line of a terminal, which it overwrites. It shows
// nothing if out is not a terminal.
type meter struct {
	notes io.Writer
	mu    sync.Mutex
	out   *os.File // nil: nothing is shown
	last  string
}

func newMeter(out io.Writer) *meter {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &meter{notes: out, out: f}
	}
	return &meter{notes: out}
}

// note prints a line that stays, on a terminal or not.
func (m *meter) note(text string) {
	m.clear()
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintln(m.notes, text)
}

// show replaces the line.
func (m *meter) show(parts ...string) {
	if m.out == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	line := joined(parts)
	// A wrapped line could not be overwritten.
	if width, _, err := term.GetSize(int(m.out.Fd())); err == nil && width > 1 {
		if r := []rune(line); len(r) >= width {
			line = string(r[:width-1])
		}
	}
	if line != m.last {
		m.last = line
		fmt.Fprint(m.out, "\r\x1b[K"+line)
	}
}

// clear removes the line.
func (m *meter) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last != "" {
		m.last = ""
		fmt.Fprint(m.out, "\r\x1b[K")
	}
}

// watch shows the progress of a workspace's operation.
func (m *meter) watch(w api.Workspace) {
	if w.Operation == "NONE" {
		m.show(terminal.Plain(w.Name), state(w))
		return
	}
	m.show(append([]string{terminal.Plain(w.Name), state(w)}, progressParts(w.Progress)...)...)
}

// progressParts formats the known parts of an operation's progress.
func progressParts(p *api.Progress) []string {
	if p == nil {
		return nil
	}
	parts := []string{terminal.Plain(p.Step), terminal.Plain(p.Detail), amount(p.Done, p.Total)}
	switch {
	case p.EntriesTotal > 0:
		parts = append(parts, fmt.Sprintf("%d of %d files", p.Entries, p.EntriesTotal))
	case p.Entries > 0:
		parts = append(parts, fmt.Sprintf("%d files", p.Entries))
	}
	return append(parts, pace(p.Rate, p.SecondsLeft))
}

// amount formats "412 MiB of 1.2 GiB, 34 %", or the part of it that is known.
func amount(done, total int64) string {
	switch {
	case total > 0:
		return fmt.Sprintf("%s of %s, %d %%", terminal.Size(done), terminal.Size(total), percent(done, total))
	case done > 0:
		return terminal.Size(done)
	}
	return ""
}

// percent rounds down, so that 100 means complete.
func percent(done, total int64) int { return int(min(100, max(0, float64(done)/float64(total)*100))) }

// pace formats "48 MiB/s, 2m left", or the part of it that is known.
func pace(rate, secondsLeft int64) string {
	var parts []string
	if rate > 0 {
		parts = append(parts, terminal.Size(rate)+"/s")
	}
	if secondsLeft > 0 {
		parts = append(parts, age(time.Duration(secondsLeft)*time.Second)+" left")
	}
	return strings.Join(parts, ", ")
}

func joined(parts []string) string {
	var text []string
	for _, p := range parts {
		if p != "" {
			text = append(text, p)
		}
	}
	return strings.Join(text, "   ")
}
