// Package terminal prints the output of commands, as tables or JSON, and asks
// questions.
package terminal

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"

	"codehub/internal/base/setting"
)

// Format is the flag of every command that prints a result.
type Format struct {
	Output string `short:"o" enum:"table,json" default:"table" help:"Output format: table or json."`
}

// Print prints a result: v as JSON, or text.
func (o Format) Print(out io.Writer, v any, text string) error {
	if o.Output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	}
	_, err := fmt.Fprintln(out, strings.TrimRight(text, "\n"))
	return err
}

// gap separates two columns of a table.
const gap = "   "

// terminal measures text as most terminals show it, independent of the locale.
var terminal = &runewidth.Condition{StrictEmojiNeutral: true}

// Table aligns rows of cells, by their width on a terminal.
func Table(rows [][]string) string {
	var widths []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], terminal.StringWidth(Plain(cell)))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, cell := range r {
			line.WriteString(terminal.FillRight(Plain(cell), widths[i]) + gap)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Time formats a time in the machine's zone, and names the zone.
func Time(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05 MST") }

// Plain removes control characters from text that others wrote, so that it cannot
// control the terminal.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, s)
}

// Size writes a number of bytes.
func Size(n int64) string { return setting.FormatBytes(n) }
