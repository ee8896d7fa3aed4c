package kube

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"codehub/internal/runtime"
)

// Nodes pull images, and a Pod's status does not say so: its containers wait to be created.
// Only the events of the Pod have it. They are listed for a Pod that a call waits for, and not
// before it has been on its node for a while.

const (
	// explainAfter is how long a Pod may be on a node without running, before the cluster is
	// asked why.
	explainAfter = 5 * time.Second
	// explainEvery is the shortest time between two such questions.
	explainEvery = 5 * time.Second
)

// explained is what a call that waits for a Pod has learned from the Pod's events.
type explained struct {
	step     string // of the call, while its node pulls no image
	progress func(runtime.Progress)
	due      time.Time // when the events are to be listed; zero: it is not known yet
	pulling  bool
}

// explain returns the cluster's reason why a Pod that is on a node does not run, or nil, and
// reports as progress that its node pulls an image. It lists the Pod's events if that is due.
//
// A pull that runs makes progress, although its bytes are not known: container runtimes cancel
// one that makes none, containerd after five minutes. It no longer counts after
// Config.PullTimeout, or once the cluster has deleted its event, by default after an hour. Then,
// and if the events cannot be listed, the deadline of the operation counts.
//
// A node also completes a pull for a Pod that is being removed, and only then removes the Pod:
// that is runtime.ErrBusy.
func (r *Runtime) explain(ctx context.Context, p *corev1.Pod, e *explained) error {
	at, now, removing := placedAt(p), time.Now(), p.DeletionTimestamp != nil
	switch {
	case at.IsZero():
		return nil
	case e.due.IsZero() && removing:
		e.due = now.Add(explainAfter)
	case e.due.IsZero():
		e.due = at.Add(explainAfter)
	}
	if now.Before(e.due) {
		return nil
	}
	e.due = now.Add(explainEvery)
	events, err := r.events().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(p.UID)).String()})
	if err != nil {
		r.log.Debug("events of a Pod cannot be read", "pod", p.Name, "err", err)
		return nil
	}
	if pulls(events.Items, now.Add(-r.cfg.PullTimeout)) {
		if removing {
			return &runtime.BusyError{Step: runtime.StepPulling, Reason: fmt.Sprintf(runtime.MsgNodePulls, p.Spec.NodeName)}
		}
		e.due, e.pulling = now.Add(unschedulableFor), true
		if e.progress != nil {
			e.progress(runtime.Progress{Step: runtime.StepPulling, Uncounted: true})
		}
		return nil
	}
	e.pulled()
	if removing || now.Sub(at) < stuckAfter || condition(p, corev1.PodReadyToStartContainers) == corev1.ConditionTrue {
		return nil
	}
	return stuck(events.Items)
}

// pulled reports the step of the call again after a pull.
func (e *explained) pulled() {
	if e.pulling {
		e.pulling = false
		report(e.progress, e.step)
	}
}

// wait is how long a call waits for a change of its Pod before it reads the Pod again.
func (e *explained) wait(p *corev1.Pod) time.Duration {
	if placedAt(p).IsZero() {
		return unschedulableFor
	}
	return min(max(time.Until(e.due), 0), unschedulableFor)
}

// pulls reports whether, by the events of a Pod, its node pulls an image: one of a container, of an
// init container or of a volume. A pull that began before a time does not count. The times of
// events are whole seconds: a pull that began and ended in the same one has ended.
func pulls(events []corev1.Event, notBefore time.Time) bool {
	began, ended := map[string]time.Time{}, map[string]time.Time{} // by image
	for i := range events {
		e := &events[i]
		of := ended
		switch e.Reason {
		case "Pulling":
			of = began
		case "Pulled", "Failed", "BackOff":
		default:
			continue
		}
		image, at := eventImage(e.Message), seenAt(e)
		if at.After(of[image]) {
			of[image] = at
		}
	}
	for image, at := range began {
		if at.After(ended[image]) && !at.Before(notBefore) {
			return true
		}
	}
	return false
}

// eventImage returns the image that an event names, as in `Pulling image "r.example.com/a:1"`.
func eventImage(message string) string {
	_, name, _ := strings.Cut(message, `image "`)
	name, _, _ = strings.Cut(name, `"`)
	return name
}
