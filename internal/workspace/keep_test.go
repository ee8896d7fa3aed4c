package workspace

import (
	"testing"
	"time"
)

func TestKeep(t *testing.T) {
	t.Parallel()
	k, err := ParseKeep("24h, 7d,4w,6m")
	if err != nil {
		t.Fatal(err)
	}
	// A backup each 20 minutes for a year.
	last := time.Date(2026, 11, 30, 13, 40, 0, 0, time.UTC)
	var all []time.Time
	for at := last.AddDate(-1, 0, 0); !at.After(last); at = at.Add(20 * time.Minute) {
		all = append(all, at)
	}
	kept := k.Of(all)
	var days, months int
	for i, at := range kept {
		if i < 24 && !at.Equal(last.Add(-time.Duration(i)*time.Hour)) {
			t.Errorf("hour %d: %s", i, at)
		}
		if at.Hour() == 23 && at.Minute() == 40 {
			days++
			if at.AddDate(0, 0, 1).Day() == 1 {
				months++
			}
		}
	}
	// The first hour is also the latest of a day, a week and a month, and that of 29 November, a Sunday, of a day and a week.
	if len(kept) != 24+5+2+5 || days != 1+5+2+5 || months != 5 {
		t.Errorf("%d are kept, %d ends of days, %d of months: %v", len(kept), days, months, kept)
	}
	if got := (Keep{}).Of(all[:5]); len(got) != 1 || !got[0].Equal(all[4]) {
		t.Errorf("without a rule: %v", got)
	}
	for _, bad := range []string{"", "h", "0h", "3x", "1h,2h", "1h,", "-1d", "99999999999h"} {
		if k, err := ParseKeep(bad); err == nil {
			t.Errorf("%q is %+v", bad, k)
		}
	}
}
