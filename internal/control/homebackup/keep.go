package homebackup

import (
	"slices"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// How long backups are kept in addition to the rule: one with a note, and one that was requested or made
// before a step.
const (
	keepNoted = 30 * 24 * time.Hour
	keepAsked = 24 * time.Hour
)

// expired returns the backups of one workspace that are not kept. Besides those of the rule, the last
// one is kept, and the last one that was compared without a difference. list has the latest first.
func expired(rule workspace.Keep, list []postgres.KeptBackup, now time.Time) (ids []string) {
	var times []time.Time
	for _, b := range list {
		times = append(times, b.BegunAt)
	}
	kept := rule.Of(times)
	proven := slices.IndexFunc(list, func(b postgres.KeptBackup) bool { return b.VerifiedAt != nil && !b.Damaged })
	for i, b := range list {
		age := now.Sub(b.BegunAt)
		if i == 0 || i == proven || b.Noted && age < keepNoted || b.Asked && age < keepAsked || slices.ContainsFunc(kept, b.BegunAt.Equal) {
			continue
		}
		ids = append(ids, b.ID)
	}
	return ids
}
