package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"codehub/api"
	"codehub/internal/cli/terminal"
)

// meter shows on a terminal how far something is, in one line that is written
// over again and again. Where out is no terminal it shows nothing.
type meter struct {
	out  *os.File // nil: nothing is shown
	last string
}

func newMeter(out io.Writer) *meter {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &meter{out: f}
	}
	return &meter{}
}

// show replaces the line.
func (m *meter) show(parts ...string) {
	if m.out == nil {
		return
	}
	line := joined(parts)
	// A line that is wrapped could not be written over.
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

// clear takes the line away.
func (m *meter) clear() {
	if m.last != "" {
		m.last = ""
		fmt.Fprint(m.out, "\r\x1b[K")
	}
}

// watch shows what an operation on a workspace is at.
func (m *meter) watch(w api.Workspace) {
	if w.Operation == "NONE" {
		m.show(terminal.Plain(w.Name), state(w))
		return
	}
	m.show(append([]string{terminal.Plain(w.Name), state(w)}, progressParts(w.Progress)...)...)
}

// progressParts says how far an operation is, as far as that is known.
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

// amount is "412 MB of 1.2 GB, 34 %", or what of it is known.
func amount(done, total int64) string {
	switch {
	case total > 0:
		return fmt.Sprintf("%s of %s, %d %%", terminal.Size(done), terminal.Size(total), percent(done, total))
	case done > 0:
		return terminal.Size(done)
	}
	return ""
}

// percent is rounded down, so that 100 is the end.
func percent(done, total int64) int { return int(min(100, max(0, float64(done)/float64(total)*100))) }

// pace is "48 MB/s, 2m left", or what of it is known.
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
	var said []string
	for _, p := range parts {
		if p != "" {
			said = append(said, p)
		}
	}
	return strings.Join(said, "   ")
}
