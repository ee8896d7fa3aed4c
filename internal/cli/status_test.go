package cli

import (
	"testing"
	"time"

	"codehub/api"
)

// The state of the backups is one line, with what is not as it should be.
func TestBackupsInStatus(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := now.Add(-3 * time.Hour)
	for want, s := range map[string]api.BackupStatus{
		"none":                         {},
		"none, 1 queued":               {Waiting: 1},
		"0 of 2 homes compared, 1 MiB": {Homes: 2, Bytes: 1 << 20},
		"412 homes compared, 0 differences, last 3h ago, 1 GiB": {Homes: 412, Compared: 412, ComparedAt: &at, Bytes: 1 << 30},
		"9 of 10 homes compared, 1 difference, last 3h ago, 2 running, 3 late, 1 at the limit of a user, 1 GiB": {
			Homes: 10, Compared: 9, Damaged: 1, ComparedAt: &at, Running: 2, Late: 3, OverLimit: 1, Bytes: 1 << 30,
		},
	} {
		if got := backupsWords(s, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
