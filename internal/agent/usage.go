package agent

import (
	"strings"
	"unicode"
)

// Limits of what an agent reports. The workspace's own user can take its place.
const (
	// MaxHolders is how many holders are reported.
	MaxHolders = 16
	// MaxWhat is the length of a holder's description, in characters.
	MaxWhat = 200
)

// checked returns u without what no honest agent reports.
func (u Usage) checked() Usage {
	u.CPUSeconds, u.CPULimit = max(u.CPUSeconds, 0), max(u.CPULimit, 0)
	for _, n := range []*int64{&u.Memory, &u.MemoryLimit, &u.Disk, &u.DiskSize} {
		*n = max(*n, 0)
	}
	u.Processes = max(u.Processes, 0)
	u.Holders = u.Holders[:min(len(u.Holders), MaxHolders)]
	for i, h := range u.Holders {
		u.Holders[i] = Holder{What: Describe(h.What), Since: max(h.Since, 0)}
	}
	return u
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
