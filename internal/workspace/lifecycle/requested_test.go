package lifecycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// TestRequests: what each request makes of a workspace in each situation. A workspace is
// its phase, and its operation, ">desired", "+queued", "!error", "@home" and "deleted"
// where they are not NONE, >STANDBY, none, none, @absent and no.
func TestRequests(t *testing.T) {
	t.Parallel()
	for request, cases := range map[string][][2]string{
		"start": {
			{"STANDBY", ">RUNNING"}, {"PENDING", ">RUNNING"},
			{"RUNNING >RUNNING", ">RUNNING"}, {"STANDBY STARTING >RUNNING", ">RUNNING"}, // nothing to do
			{"PENDING STARTING >RUNNING +STANDBY", ">RUNNING"}, {"STANDBY +ARCHIVED", ">RUNNING"}, // clears the queue
			{"PENDING STOPPING", "operation_in_progress"}, {"ERROR !Timeout", "recovery_required"}, {"PENDING deleted", "not_found"},
		},
		"queue RUNNING": {
			{"STANDBY", ">RUNNING"}, {"PENDING STOPPING", ">STANDBY +RUNNING"}, {"PENDING STOPPING +RUNNING", ">STANDBY +RUNNING"},
			{"ERROR !Timeout", "recovery_required"},
		},
		"queue ARCHIVED": {{"PENDING STOPPING +DELETED", ">STANDBY +ARCHIVED"}},
		"stop":           {{"RUNNING >RUNNING", ">STANDBY"}, {"ERROR !Timeout", "recovery_required"}},
		"archive":        {{"RUNNING >RUNNING", ">ARCHIVED"}},
		"DELETED":        {{"PENDING", "invalid_request"}},
		"delete": {
			{"RUNNING >RUNNING +STANDBY", ">RUNNING deleted"}, {"PENDING STARTING >RUNNING", "operation_in_progress"},
			// An error would delay the deletion, now and later. One that is retried anyway does not.
			{"ERROR !DataLost", ">STANDBY deleted recover:afresh"}, {"DELETING !RetryExceeded deleted", ">STANDBY deleted recover:afresh"},
			{"DELETING !ActionFailed deleted", ">STANDBY deleted"},
		},
		"queue delete": {{"PENDING STARTING >RUNNING", ">RUNNING +DELETED"}, {"PENDING STARTING >RUNNING +DELETED", ">RUNNING +DELETED"}},
		"cancel": {
			{"PENDING STARTING >RUNNING +ARCHIVED", ">STANDBY cancel"}, {"PENDING RESTORING >RUNNING", ">ARCHIVED cancel"},
			{"PENDING ARCHIVING >ARCHIVED @live", ">STANDBY cancel"}, {"PENDING PROVISIONING", ">ARCHIVED cancel"},
			// A deletion ends the operation itself, and a cancellation does not drop it.
			{"PENDING ARCHIVING >ARCHIVED @live +DELETED", ">STANDBY +DELETED cancel"},
			{"STANDBY", "not_cancellable"}, {"PENDING ARCHIVING >ARCHIVED @archived", "not_cancellable"},
			{"PENDING CREATE_EMPTY_ARCHIVE", "not_cancellable"}, {"PENDING STOPPING", "not_cancellable"}, {"PENDING DELETING", "not_cancellable"},
		},
		"force stop": {
			{"RUNNING >RUNNING", ">STANDBY force"}, {"ERROR !Timeout >RUNNING", ">STANDBY force"}, {"PENDING STARTING >RUNNING +RUNNING", ">STANDBY force"},
			{"PENDING STOPPING >ARCHIVED +DELETED", ">ARCHIVED +DELETED force"}, {"PENDING deleted", "not_found"},
		},
		"wake": {
			{"STANDBY", ">RUNNING"}, {"STANDBY >ARCHIVED", ">RUNNING"}, {"STANDBY >RUNNING", ">RUNNING"}, {"STANDBY >RUNNING +STANDBY", ">RUNNING"},
			{"STANDBY +DELETED", ">STANDBY +DELETED"}, {"RUNNING >RUNNING", ">RUNNING"}, {"RUNNING", ">RUNNING"},
			{"STANDBY STARTING >RUNNING", ">RUNNING"}, {"STANDBY STARTING", ">STANDBY +RUNNING"}, {"PENDING PROVISIONING >RUNNING", ">RUNNING"},
			{"ARCHIVED RESTORING", ">STANDBY +RUNNING"}, {"RUNNING STOPPING", ">STANDBY +RUNNING"}, {"RUNNING STOPPING +RUNNING", ">STANDBY +RUNNING"},
			{"RUNNING STOPPING +DELETED", ">STANDBY +DELETED"}, {"STANDBY ARCHIVING >ARCHIVED", ">ARCHIVED +RUNNING"},
			{"ARCHIVED >ARCHIVED", ">ARCHIVED"}, {"PENDING", ">STANDBY"}, {"ERROR !Timeout", ">STANDBY"}, {"STANDBY deleted", "not_found"},
		},
		"apply queued": {
			{"STANDBY", ">STANDBY"}, {"PENDING STOPPING +RUNNING", ">STANDBY +RUNNING"}, {"STANDBY +RUNNING", ">RUNNING"},
			{"STANDBY >RUNNING +RUNNING", ">RUNNING"}, {"RUNNING >RUNNING +STANDBY", ">STANDBY"}, {"STANDBY +ARCHIVED", ">ARCHIVED"},
			{"STANDBY +DELETED", ">STANDBY deleted"}, {"ERROR !Timeout +RUNNING", ">STANDBY +RUNNING"},
			{"ERROR !Timeout +DELETED", ">STANDBY deleted recover:afresh"}, {"PENDING deleted +RUNNING", ">STANDBY +RUNNING deleted"},
		},
		"recover": {
			{"ERROR !DataLost", ">STANDBY recover:afresh"}, {"DELETING deleted !Timeout", ">STANDBY deleted recover:afresh"},
			{"PENDING", "not_in_error"}, {"RUNNING", "not_in_error"}, {"STANDBY !ActionFailed", "not_in_error"}, {"DELETING deleted", "not_in_error"},
		},
		"start empty": {{"ERROR !DataLost", ">STANDBY recover:empty"}, {"ERROR !Timeout", "not_lost"}, {"DELETING deleted !Timeout", "not_lost"}},
		"hope":        {{"ERROR !DataLost", "invalid_request"}},
	} {
		for _, c := range cases {
			w := spelt(t, c[0])
			out, err := requested(w, epoch.Add(time.Hour), request)
			got := string(workspace.CodeOf(err))
			if err == nil {
				got = asked(out.Workspace)
			}
			if got != c[1] {
				t.Errorf("%s in %q: %q, want %q", request, c[0], got, c[1])
			}
			if next := out.Workspace; request == "wake" && err == nil && (next.LastAccessAt == nil || next.LastAccess != workspace.AccessOpen) {
				t.Errorf("%s in %q: its use is not recorded", request, c[0])
			}
		}
	}
}

func requested(w workspace.Workspace, now time.Time, request string) (lifecycle.Intent, error) {
	verb, queue := strings.CutPrefix(request, "queue ")
	switch verb {
	case "delete":
		return lifecycle.Delete(w, now, queue)
	case "cancel":
		return lifecycle.RequestCancel(w, now)
	case "force stop":
		return lifecycle.RequestForceStop(w, now)
	case "wake":
		return lifecycle.Wake(w, now)
	case "apply queued":
		return lifecycle.ApplyQueued(w, now), nil
	case "recover":
		return lifecycle.RequestRecover(w, now, workspace.RecoverAfresh)
	case "start empty":
		return lifecycle.RequestRecover(w, now, workspace.RecoverEmpty)
	case "hope":
		return lifecycle.RequestRecover(w, now, verb)
	case "start":
		verb = "RUNNING"
	case "stop":
		verb = "STANDBY"
	case "archive":
		verb = "ARCHIVED"
	}
	return lifecycle.Desire(w, now, workspace.DesiredState(verb), queue)
}

// spelt makes the workspace of a row.
func spelt(t *testing.T, s string) workspace.Workspace {
	t.Helper()
	words := strings.Fields(s)
	w := workspace.Workspace{
		ID: "019a0000-0000-7000-8000-000000000001", Phase: workspace.Phase(words[0]), Operation: workspace.OpNone,
		DesiredState: workspace.DesiredStandby, Home: workspace.Home{State: workspace.HomeAbsent},
	}
	for _, word := range words[1:] {
		switch value := word[1:]; {
		case word[0] == '>':
			w.DesiredState = workspace.DesiredState(value)
		case word[0] == '+':
			w.NextDesired = workspace.DesiredState(value)
		case word[0] == '!':
			w.ErrorReason = workspace.ErrorReason(value)
		case word[0] == '@':
			w.Home.State = workspace.HomeState(value)
		case word == "deleted":
			at := epoch
			w.DeletedAt = &at
		case slices.Contains(workspace.Operations(), workspace.Operation(word)):
			w.Operation = workspace.Operation(word)
		default:
			t.Fatalf("%q in %q is unknown", word, s)
		}
	}
	return w
}

// asked spells what requests have made of a workspace.
func asked(w workspace.Workspace) string {
	s := fmt.Sprintf(">%s", w.DesiredState)
	for _, part := range []struct {
		there bool
		word  string
	}{
		{w.NextDesired != "", "+" + string(w.NextDesired)}, {w.DeletedAt != nil, "deleted"}, {w.RecoverRequestedAt != nil, "recover:" + w.RecoverAction},
		{w.CancelRequestedAt != nil, "cancel"}, {w.ForceStopRequestedAt != nil, "force"},
	} {
		if part.there {
			s += " " + part.word
		}
	}
	return s
}
