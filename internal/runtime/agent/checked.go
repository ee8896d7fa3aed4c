package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"unicode"
)

// Limits of what an agent reports. The workspace's own user can take its place.
const (
	// MaxPorts is how many ports are listed.
	MaxPorts = 1000
	// maxProcess is the length of the name of a process, and maxReason that of the reason
	// for a refusal, in characters.
	maxProcess, maxReason = 256, 1000
	// MaxHolders is how many holders are reported.
	MaxHolders = 16
	// MaxWhat is the length of a holder's description, in characters.
	MaxWhat = 200
	// maxProcessors and maxSeconds bound numbers: the first is more than any machine
	// has, and the second is the end of the year 9999, since 1970.
	maxProcessors, maxSeconds = 1 << 16, 253402300799
)

// checked returns u without what no honest agent reports.
func (u Usage) checked() Usage {
	u.CPULimit = within(u.CPULimit, maxProcessors)
	u.CPUSeconds = within(u.CPUSeconds, maxProcessors*maxSeconds)
	for _, n := range []*int64{&u.Memory, &u.MemoryLimit, &u.Disk, &u.DiskSize} {
		*n = max(*n, 0)
	}
	u.Processes = max(u.Processes, 0)
	u.Holders = u.Holders[:min(len(u.Holders), MaxHolders)]
	for i, h := range u.Holders {
		u.Holders[i] = Holder{What: Describe(h.What), Since: min(max(h.Since, 0), maxSeconds)}
	}
	return u
}

// within returns x, or the nearest number from 0 to most; 0 for one that is none.
func within(x, most float64) float64 {
	if math.IsNaN(x) {
		return 0
	}
	return min(max(x, 0), most)
}

// Describe returns text as a holder's description: one line of printable characters,
// with at most MaxWhat of them.
func Describe(text string) string { return printable(text, MaxWhat) }

// printable returns the first printable characters of text, at most that many, on one
// line.
func printable(text string, most int) string {
	n := 0
	text = strings.Map(func(r rune) rune {
		switch {
		case n == most:
			return -1
		case unicode.IsSpace(r):
			r = ' '
		case !unicode.IsPrint(r):
			return -1
		}
		n++
		return r
	}, strings.ToValidUTF8(text, ""))
	return strings.TrimSpace(text)
}

// portsAnswer is Ports as the server reads it: by number, without what no honest agent
// reports, and at most MaxPorts.
type portsAnswer struct {
	Ports portList `json:"ports"`
}

type portList []Port

// UnmarshalJSON reads a list no further than it is used, so that a long one takes no
// memory.
func (l *portList) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	switch begin, err := d.Token(); {
	case err != nil || begin == nil: // null: nothing listens
		return err
	case begin != json.Delim('['):
		return errors.New("the ports are not a list")
	}
	var list []Port
	for n := 0; d.More() && n < MaxPorts; n++ {
		var p Port
		if err := d.Decode(&p); err != nil {
			return err
		}
		if p.Port < 1 || p.Port > 65535 {
			continue
		}
		p.Process = printable(p.Process, maxProcess)
		p.PID, p.Since = max(p.PID, 0), min(max(p.Since, 0), maxSeconds)
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b Port) int { return a.Port - b.Port })
	*l = slices.CompactFunc(list, func(a, b Port) bool { return a.Port == b.Port })
	return nil
}

// checked returns e with a code and a signal that a command can have.
func (e Exit) checked() Exit {
	if e.Code < 0 || e.Code > 255 {
		e.Code = 255
	}
	notOfSignal := func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') }
	if len(e.Signal) > 16 || strings.ContainsFunc(e.Signal, notOfSignal) {
		e.Signal = ""
	}
	return e
}
