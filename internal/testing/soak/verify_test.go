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

// outcome is the outcome of a round for one home.
type outcome string

const (
	ok      outcome = "ok"
	lost    outcome = "lost"    // the owner cannot reach its content
	damaged outcome = "damaged" // it exists and differs
	stuck   outcome = "stuck"   // no documented recovery makes the workspace usable
)

// settlePatience is the time within which a workspace must finish its
// operations and recoveries after a fault.
var settlePatience = time.Duration(intSetting("SOAK_PATIENCE", 240)) * time.Second

// verify brings the workspace to STANDBY, with the documented recovery options
// if needed, and compares its home.
func (l *life) verify(ctx context.Context) (outcome, string) {
	if l.id == "" {
		if err := l.findID(ctx); err != nil {
			return stuck, err.Error()
		}
		if l.id == "" {
			return ok, "" // its creation was never acknowledged
		}
	}
	result, detail := l.awaitStandby(ctx)
	if result != ok || l.id == "" {
		return result, detail
	}
	dir, err := l.homeFolder(ctx)
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

// awaitStandby brings the workspace to STANDBY. Its outcome is also ok if the
// deletion's grace has ended.
func (l *life) awaitStandby(ctx context.Context) (outcome, string) {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	var last string
	for recovered := 0; ; {
		w, err := l.world.api.Get(ctx, l.id)
		var e *codehub.Error
		switch {
		case errors.As(err, &e) && e.Status == http.StatusNotFound, err == nil && w.DeletedAt != nil:
			err := l.undelete(ctx)
			if errors.Is(err, errPurged) {
				return ok, ""
			}
			if errors.As(err, &e) && (e.Status == http.StatusGone || e.Status == http.StatusNotFound) {
				if l.deleted.IsZero() {
					return lost, fmt.Sprintf("deleted after its undelete was acknowledged, and cannot be undeleted: %v", err)
				}
				return lost, fmt.Sprintf("deleted %s ago, with a grace of %s, and cannot be undeleted: %v", time.Since(l.deleted), l.world.grace, err)
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
				return l.dataLossOutcome(ctx, w)
			}
			l.note("%s; recover", last)
			var how api.Recover
			if recovered == 3 && str(w.ErrorReason) == "RetryExceeded" {
				how.Action = "set_aside" // the blocking volume is kept under another name
			}
			if _, err := l.world.api.Recover(ctx, l.id, how); err != nil {
				last += fmt.Sprintf("; recover %s: %v", how.Action, err)
			}
			l.pause(ctx, 1000)
		case isSettled(w) && w.Phase == "STANDBY":
			return ok, ""
		case isSettled(w):
			if err := l.setDesired(ctx, "STANDBY"); err != nil {
				last = err.Error()
			}
		default:
			last = fmt.Sprintf("phase %s, operation %s, desired %s, queued %s: %s", w.Phase, w.Operation, w.DesiredState, str(w.NextDesiredState), str(w.ErrorMessage))
		}
		select {
		case <-ctx.Done():
			return stuck, last
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// dataLossOutcome returns the outcome of a workspace that stays in ERROR after
// recoveries, with the number of its archives.
func (l *life) dataLossOutcome(ctx context.Context, w api.Workspace) (outcome, string) {
	why := fmt.Sprintf("ERROR %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
	switch str(w.ErrorReason) {
	case "DataLost", "ArchiveCorrupted":
	default:
		return stuck, why
	}
	archives, err := l.world.api.Archives(ctx, l.id)
	if err != nil || len(archives) == 0 {
		return lost, fmt.Sprintf("%s; no archive is offered (%v)", why, err)
	}
	return lost, fmt.Sprintf("%s; %d archives are offered, the newest from %s", why, len(archives), archives[0].CreatedAt)
}
