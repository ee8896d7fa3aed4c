package storagejob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"codehub/internal/runtime"
)

// Errors of Follow.
var (
	ErrRemoved  = errors.New("the storage job was removed before it had ended")
	ErrNoOrders = errors.New("the storage job received no instructions")
)

// NoResultError is the end of a job that reported no result. Without Output it was probably killed.
type NoResultError struct {
	Exit   int
	Output string // the end of what is not part of the report
}

func (e *NoResultError) Error() string {
	text := fmt.Sprintf("the storage job ended (exit code %d) without a result", e.Exit)
	if e.Output != "" {
		text += "; it printed: " + e.Output
	}
	return text
}

// Follow follows a job to its end with the runtime's FollowJob, and returns its result, which may have an Error.
// A result counts only if it names the job's own claim and kind. The error is ErrRemoved, ErrNoOrders, a
// NoResultError, or one of the runtime.
func Follow(ctx context.Context, follow func(context.Context, string, func([]byte)) (int, error), j runtime.Job, step func(runtime.Progress)) (Result, error) {
	var result *Result
	var tail outputTail
	exit, err := follow(ctx, j.ID, func(line []byte) {
		var e Event
		if json.Unmarshal(line, &e) != nil || e.Progress == nil && e.Result == nil {
			tail.add(line)
			return
		}
		if p := e.Progress; p != nil {
			step(runtime.Progress{Step: p.Step, Done: p.Bytes, Total: p.BytesTotal, Entries: p.Entries, EntriesTotal: p.EntriesTotal})
		}
		if e.Result != nil {
			result = e.Result
		}
	})
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return Result{}, ErrRemoved
	case err != nil:
		return Result{}, fmt.Errorf("follow the storage job: %w", err)
	case result == nil:
		return Result{}, &NoResultError{Exit: exit, Output: tail.String()}
	case result.Error != nil && result.Error.Kind == NoOrders:
		return Result{}, ErrNoOrders
	case result.Claim != j.Claim || result.Kind != string(j.Kind):
		return Result{}, fmt.Errorf("the storage job reports on %.50q of claim %.50q, and was to do %q of claim %q", result.Kind, result.Claim, j.Kind, j.Claim)
	}
	return *result, nil
}

// outputTail keeps the end of a job's output that is not part of the report.
type outputTail []byte

func (w *outputTail) add(line []byte) {
	const most = 2000
	*w = append(append(*w, line...), '\n')
	if n := len(*w); n > most {
		*w = append((*w)[:0], (*w)[n-most:]...)
	}
}

func (w *outputTail) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(string(*w), "\uFFFD"))
}
