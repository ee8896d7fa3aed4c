package agent

import (
	"math"
	"strings"
	"unicode"
)

// Limits of what an agent reports. The workspace's own user can take its place.
const (
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
func Describe(text string) string {
	n := 0
	text = strings.Map(func(r rune) rune {
		switch {
		case n == MaxWhat:
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
