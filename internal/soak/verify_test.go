package soak

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"codehub/api"
	codehub "codehub/client"
)

// outcome is what became of a home in a round.
type outcome string

const (
	ok      outcome = "ok"
	lost    outcome = "lost"    // its content is nowhere that its owner could get at
	damaged outcome = "damaged" // it is there and not what it was
	stuck   outcome = "stuck"   // no documented way leads to it
)

// settlePatience is how long a workspace may take to come to rest after a fault,
// with everything that it had under way and the ways out of what went wrong.
var settlePatience = time.Duration(number("SOAK_PATIENCE", 240)) * time.Second

// verify brings a workspace to STANDBY, by the documented ways out of whatever it
// meets, and compares its home.
func (l *life) verify(ctx context.Context) (outcome, string) {
	if l.id == "" {
		if err := l.find(ctx); err != nil {
			return stuck, err.Error()
		}
		if l.id == "" {
			return ok, "" // its creation was never acknowledged
		}
	}
	result, why := l.bringUp(ctx)
	if result != ok || l.id == "" {
		return result, why
	}
	dir, err := l.folder(ctx)
	if err != nil {
		return lost, fmt.Sprintf("STANDBY without a home: %v", err)
	}
	diff, err := l.compare(dir)
	if err != nil {
		return damaged, err.Error()
	}
	if diff != "" {
		return damaged, diff
	}
	return ok, ""
}

// bringUp ends with the workspace in STANDBY, or purged.
func (l *life) bringUp(ctx context.Context) (outcome, string) {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	var last string
	for recovered := 0; ; {
		w, err := l.w.hub.Get(ctx, l.id)
		var e *codehub.Error
		switch {
		case errors.As(err, &e) && e.Status == http.StatusNotFound, err == nil && w.DeletedAt != nil:
			err := l.undelete(ctx)
			if errors.Is(err, errPurged) {
				return ok, ""
			}
			if errors.As(err, &e) && (e.Status == http.StatusGone || e.Status == http.StatusNotFound) {
				if l.deleted.IsZero() {
					return lost, fmt.Sprintf("deleted though its owner did not want that any more, and cannot be undeleted: %v", err)
				}
				return lost, fmt.Sprintf("deleted %s ago, with a grace of %s, and cannot be undeleted: %v", time.Since(l.deleted), l.w.grace, err)
			}
			last = fmt.Sprintf("deleted; undelete: %v", err)
		case err != nil:
			last = err.Error()
		case w.Phase == "ERROR" && w.PendingRequest != nil:
			// Setting a volume aside copies it, which takes a while.
			last = "ERROR, while the server handles " + *w.PendingRequest
		case w.Phase == "ERROR":
			last = fmt.Sprintf("ERROR %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
			if recovered++; recovered > 3 {
				return l.lastResort(ctx, w)
			}
			l.note("%s; recover", last)
			var how api.Recover
			if recovered == 3 && str(w.ErrorReason) == "RetryExceeded" {
				how.Action = "set_aside" // what is in the way of the home is kept under another name
			}
			if _, err := l.w.hub.Recover(ctx, l.id, how); err != nil {
				last += fmt.Sprintf("; recover %s: %v", how.Action, err)
			}
			l.pause(ctx, 1000)
		case atRest(w) && w.Phase == "STANDBY":
			return ok, ""
		case atRest(w):
			if err := l.ask(ctx, "STANDBY"); err != nil {
				last = err.Error()
			}
		default:
			last = fmt.Sprintf("phase %s, operation %s, wanted %s, next %s: %s", w.Phase, w.Operation, w.DesiredState, str(w.NextDesiredState), str(w.ErrorMessage))
		}
		select {
		case <-ctx.Done():
			return stuck, last
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lastResort is for a workspace in ERROR that recovering does not help: the
// archives that are offered, the newest first.
func (l *life) lastResort(ctx context.Context, w api.Workspace) (outcome, string) {
	why := fmt.Sprintf("ERROR %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
	switch str(w.ErrorReason) {
	case "DataLost", "ArchiveCorrupted":
	default:
		return stuck, why
	}
	archives, err := l.w.hub.Archives(ctx, l.id)
	if err != nil || len(archives) == 0 {
		return lost, fmt.Sprintf("%s; no archive is offered (%v)", why, err)
	}
	return lost, fmt.Sprintf("%s; %d archives are offered, the newest from %s", why, len(archives), archives[0].CreatedAt)
}
