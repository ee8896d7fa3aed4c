package workspace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Keep says which generations of a backup are kept, by their time: for each unit the latest one of
// its last N hours, days, weeks or months that have any.
type Keep struct{ hours, days, weeks, months int }

// ParseKeep reads a rule such as 24h,7d,4w,6m. Each unit may be there once.
func ParseKeep(rule string) (k Keep, err error) {
	units := map[byte]*int{'h': &k.hours, 'd': &k.days, 'w': &k.weeks, 'm': &k.months}
	for part := range strings.SplitSeq(rule, ",") {
		part = strings.TrimSpace(part)
		n, bad := 0, part == ""
		if !bad {
			n, err = strconv.Atoi(part[:len(part)-1])
			bad = err != nil || n < 1 || n > 10_000 || units[part[len(part)-1]] == nil
		}
		if bad {
			return Keep{}, fmt.Errorf("%.40q is no rule such as 24h,7d,4w,6m", rule)
		}
		*units[part[len(part)-1]] = n
		delete(units, part[len(part)-1])
	}
	return k, nil
}

// Of returns those of the times that are kept, the latest first. The latest of all always is.
func (k Keep) Of(times []time.Time) (kept []time.Time) {
	times = slices.Clone(times)
	slices.SortFunc(times, func(a, b time.Time) int { return b.Compare(a) })
	type unit struct {
		left int
		last string // the period of the last one that was kept
		of   func(time.Time) string
	}
	units := []unit{
		{left: k.hours, of: func(t time.Time) string { return t.Format("2006-01-02 15") }},
		{left: k.days, of: func(t time.Time) string { return t.Format(time.DateOnly) }},
		{left: k.weeks, of: func(t time.Time) string { year, week := t.ISOWeek(); return fmt.Sprint(year, "-", week) }},
		{left: k.months, of: func(t time.Time) string { return t.Format("2006-01") }},
	}
	for i, t := range times {
		keep := i == 0
		for j := range units {
			u := &units[j]
			if period := u.of(t.UTC()); u.left > 0 && period != u.last {
				u.left, u.last, keep = u.left-1, period, true
			}
		}
		if keep {
			kept = append(kept, t)
		}
	}
	return kept
}
