package server

import (
	"errors"
	"log/slog"
	"testing"

	"codehub/internal/base/health"
	"codehub/internal/control/mark"
	"codehub/internal/web/dashboard/catalogue"
)

// The dashboard has a text for each condition that it shows to every user. A full data folder is
// not a full disk of homes, on which nothing starts.
func TestTroublesHaveTexts(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for condition, want := range map[string]string{
		"": "", "docker": "backend", "wall": "wall", "disk": "disk", "data-disk": "data_disk", "bucket": "bucket", "hold": "hold", "redis": "",
	} {
		conditions := &health.Monitor{}
		h := newHold(nil, mark.New(mark.Config{Log: log}), conditions, log)
		if condition == "hold" {
			h.stored.Set(errors.New("another database"))
		} else if condition != "" {
			conditions.New(health.Config{Name: condition, Log: log}).Set(errors.New("full"))
		}
		got := trouble(h, conditions)
		if got != want {
			t.Errorf("%q: %q, want %q", condition, got, want)
		}
		for _, l := range catalogue.Languages() {
			if got != "" && !l.Has("notice."+got) {
				t.Errorf("no text for %q in %s", got, l.Code)
			}
		}
	}
}
