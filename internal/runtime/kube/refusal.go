package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"codehub/internal/runtime"
)

// stuckAfter is how long a Pod may be on a node without a container that was created, before
// an event of a failure is the reason.
const stuckAfter = 30 * time.Second

// stuck returns the cluster's reason why a node does not start the containers of a Pod, such
// as a volume that is not attached, or nil. Only the Pod's events have it.
func stuck(events []corev1.Event) error {
	last := lastFailure(events)
	if last == nil {
		return nil
	}
	step := runtime.StepWaitingBackend
	if slices.Contains([]string{"FailedAttachVolume", "FailedMount", "FailedMapVolume"}, last.Reason) {
		step = runtime.StepWaitingVolume
	}
	return &runtime.BusyError{Step: step, Reason: joined(last.Reason, last.Message)}
}

// lastFailure returns the event that says why a Pod on a node does not start, or nil. A volume that
// is not attached comes first: the cluster may say so only once, and the node repeats that it could
// not mount the volumes in time.
func lastFailure(events []corev1.Event) *corev1.Event {
	var last *corev1.Event
	attached, failed := map[string]time.Time{}, map[string]*corev1.Event{} // the last of each volume
	for i := range events {
		e := &events[i]
		volume := attachedVolume(e.Message)
		switch {
		case e.Reason == "SuccessfulAttachVolume":
			if at := seenAt(e); at.After(attached[volume]) {
				attached[volume] = at
			}
			continue
		case e.Type != corev1.EventTypeWarning || !strings.HasPrefix(e.Reason, "Failed") || e.Reason == "FailedScheduling":
			continue
		case e.Reason == "FailedAttachVolume" && (failed[volume] == nil || !seenAt(e).Before(seenAt(failed[volume]))):
			failed[volume] = e
		}
		if last == nil || !seenAt(e).Before(seenAt(last)) {
			last = e
		}
	}
	var attach *corev1.Event
	for _, volume := range slices.Sorted(maps.Keys(failed)) {
		e := failed[volume]
		if seenAt(e).After(attached[volume]) && (attach == nil || seenAt(e).After(seenAt(attach))) {
			attach = e
		}
	}
	if attach != nil {
		return attach
	}
	return last
}

// attachedVolume returns the volume that the cluster's message about an attachment names, as in
// `Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) x`.
func attachedVolume(message string) string {
	_, name, _ := strings.Cut(message, `for volume "`)
	name, _, _ = strings.Cut(name, `"`)
	return name
}

func seenAt(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// placedAt is when a Pod was given to a node; zero if it was not, or runs already.
func placedAt(p *corev1.Pod) time.Time {
	if p.Status.Phase != corev1.PodPending {
		return time.Time{}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// unscheduled is the refusal of a Pod that fits on no node.
func unscheduled(message string) error {
	step := runtime.StepWaitingRoom
	if strings.Contains(message, "olume") { // PersistentVolumeClaims that are not bound, node affinity of a volume
		step = runtime.StepWaitingVolume
	}
	return &runtime.BusyError{Step: step, Reason: message}
}

// quotaError returns the refusal of an object that exceeds a quota of the namespace, or nil.
func quotaError(err error) error {
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
		return nil
	}
	return &runtime.BusyError{Step: runtime.StepWaitingQuota, Reason: err.Error()}
}

// outOfMemory explains the reason with which the cluster ends a container that used too much
// memory.
func outOfMemory(p *corev1.Pod) string {
	limit := ""
	if q, ok := p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory]; ok {
		limit = q.String()
	}
	return fmt.Sprintf(runtime.MsgOutOfMemory, limit)
}
