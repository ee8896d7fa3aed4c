package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"codehub/internal/runtime"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace/imageref"
)

// errGone means that a Pod was removed while a call waited for it.
var errGone = errors.New("the Pod was removed")

// await waits until done, which gets each version of the Pod, reports true or an error. It
// returns the last version. A Pod that is removed, or replaced by another one, is errGone.
func (r *Runtime) await(ctx context.Context, p *corev1.Pod, done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	return r.awaitStep(ctx, p, "", nil, done)
}

// awaitStep is await, and reports while the Pod's node pulls an image. step is reported
// afterwards.
func (r *Runtime) awaitStep(ctx context.Context, p *corev1.Pod, step string, progress func(runtime.Progress), done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	e := &explained{step: step, progress: progress}
	for {
		ok, err := done(p)
		if ok && err == nil {
			e.pulled()
		}
		if ok || err != nil {
			r.podView.wrote(p)
			return p, err
		}
		if err := r.explain(ctx, p, e); err != nil {
			return p, err
		}
		next, err := r.nextVersion(ctx, p, e.wait(p), done)
		if err != nil {
			return p, err
		}
		p = next
	}
}

// nextVersion waits for a later version of a Pod. It takes it from the watch of all Pods, and waits
// while that is being opened again. If the watch cannot be opened, or brings none within a time, it
// asks the cluster.
func (r *Runtime) nextVersion(ctx context.Context, p *corev1.Pod, within time.Duration, done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	changed, end := r.podView.arrivals.expect(p.Namespace + "/" + p.Name)
	defer end()
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		open, soon := r.podView.isOpen()
		if !open && !soon {
			return r.watchOne(ctx, p, within, done)
		}
		now := r.podView.stored(p.Namespace, p.Name)
		switch {
		case now == nil:
			if removed, _ := r.podView.reached(p); removed {
				if found, err := r.reread(ctx, p); err != nil || laterThan(found, p) {
					return found, err
				}
			}
		case !laterThan(now, p):
		case now.UID != p.UID:
			return nil, fmt.Errorf("pod %s: %w", p.Name, errGone)
		default:
			return now.DeepCopy(), nil
		}
		select {
		case <-changed:
		case <-late.C:
			return r.reread(ctx, p)
		case <-ctx.Done():
			return r.reread(ctx, p)
		}
	}
}

// watchOne watches a Pod for a time, while there is no watch of all Pods, until done says so or the
// watch ends.
func (r *Runtime) watchOne(ctx context.Context, p *corev1.Pod, within time.Duration, done func(*corev1.Pod) (bool, error)) (*corev1.Pod, error) {
	watching, stop := context.WithTimeout(ctx, within)
	defer stop()
	selector := fields.OneTermEqualSelector("metadata.name", p.Name).String()
	events, err := r.pods().Watch(watching, metav1.ListOptions{FieldSelector: selector, ResourceVersion: p.ResourceVersion})
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		if ctx.Err() == nil && watching.Err() != nil {
			return r.reread(ctx, p)
		}
		return nil, wrapError(ctx, "watch Pod "+p.Name, err)
	}
	if err == nil {
		defer events.Stop()
		for e := range events.ResultChan() {
			next, is := e.Object.(*corev1.Pod)
			if !is {
				break // an error of the watch
			}
			if e.Type == watch.Deleted || next.UID != p.UID {
				return nil, fmt.Errorf("pod %s: %w", p.Name, errGone)
			}
			if ok, err := done(next); ok || err != nil {
				return next, nil
			}
		}
	}
	next, err := r.reread(ctx, p)
	if err != nil || laterThan(next, p) {
		return next, err
	}
	// The watch has ended without a change, for example because this version is too old for an API
	// server that was restarted. Then the next one ends at once, too.
	select {
	case <-time.After(watchAgain):
	case <-watching.Done():
	}
	return next, nil
}

// watchAgain is how long a call waits after a watch that has brought nothing.
const watchAgain = time.Second

// reread returns the present version of a Pod.
func (r *Runtime) reread(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	if err := ctx.Err(); err != nil {
		return nil, wrapError(ctx, "wait for Pod "+p.Name, fmt.Errorf("%w: %s", err, words(p)))
	}
	now, err := r.pods().Get(ctx, p.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
		return nil, fmt.Errorf("pod %s: %w", p.Name, errGone)
	}
	if err != nil {
		return nil, wrapError(ctx, "read Pod "+p.Name, err)
	}
	return now, nil
}

// awaitRemoval waits until exactly this Pod is gone. It is runtime.ErrBusy if its node does
// not respond, or pulls an image for it.
func (r *Runtime) awaitRemoval(ctx context.Context, p *corev1.Pod) error {
	now, err := r.reread(ctx, p)
	if err == nil {
		_, err = r.await(ctx, now, func(p *corev1.Pod) (bool, error) { return false, silence(p) })
	}
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// unschedulableFor is how long no node may be found for a Pod before a call gives up. For a
// moment that is normal, while the volume is being made. It is also how often a call that
// waits reads a Pod that does not change.
const unschedulableFor = 15 * time.Second

// hasStarted is for await: it waits until the named container has started, or until it is
// known why it does not.
func hasStarted(container string) func(*corev1.Pod) (bool, error) {
	return func(p *corev1.Pod) (bool, error) {
		if s := statusOf(p, container); ended(p) || s != nil && s.State.Running != nil {
			return true, nil
		}
		return false, refusal(p)
	}
}

// begun reports whether the named container of a Pod runs or has run, or never will.
func begun(p *corev1.Pod, container string) bool {
	s := statusOf(p, container)
	return ended(p) || s != nil && (s.State.Running != nil || s.State.Terminated != nil)
}

func statusOf(p *corev1.Pod, container string) *corev1.ContainerStatus {
	i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == container })
	if i < 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[i]
}

// refusal returns the cluster's reason why a Pod does not start, once waiting alone does not
// help, or nil.
func refusal(p *corev1.Pod) error {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil {
			if err := waitingRefusal(p, s.Name, w); err != nil {
				return err
			}
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse || time.Since(c.LastTransitionTime.Time) <= unschedulableFor {
			continue
		}
		switch {
		case c.Reason == corev1.PodReasonUnschedulable:
			return unscheduled(c.Message)
		case c.Reason == corev1.PodReasonSchedulingGated && len(p.Spec.SchedulingGates) > 0: // the condition outlasts the gates
			return &runtime.BusyError{Step: runtime.StepWaitingRoom, Reason: c.Message + ": " + gates(p)}
		}
	}
	return nil
}

// gates names the gates of a Pod.
func gates(p *corev1.Pod) string {
	var names []string
	for _, g := range p.Spec.SchedulingGates {
		names = append(names, g.Name)
	}
	return strings.Join(names, ", ")
}

func waitingRefusal(p *corev1.Pod, container string, w *corev1.ContainerStateWaiting) error {
	if unreachableRegistry(w) {
		host := imageref.Registry(imageOf(p, container))
		return &runtime.BusyError{Reason: fmt.Sprintf(runtime.MsgNodeUnreachable, host)}
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
		return &runtime.PullError{Image: imageOf(p, container), Message: w.Message}
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError":
		return &startError{pod: p.Name, message: w.Message}
	}
	return nil
}

// unreachableRegistry reports whether a node could not reach the registry of an image, or the
// registry cannot serve now. The node pulls the image again.
func unreachableRegistry(w *corev1.ContainerStateWaiting) bool {
	switch w.Reason {
	case "RegistryUnavailable":
		return true
	case "ErrImagePull":
		return registry.OfMessage(w.Message) == registry.Unreachable
	case "ImagePullBackOff":
		// Before Kubernetes 1.32 the message has no cause. The next pull shows it.
		_, cause, ok := strings.Cut(w.Message, ": ")
		return !ok || registry.OfMessage(cause) == registry.Unreachable
	}
	return false
}

// startError is the refusal of a node to start a container.
type startError struct{ pod, message string }

func (e *startError) Error() string { return "pod " + e.pod + ": " + e.message }

// imageOf returns the image of a container as it was asked for.
func imageOf(p *corev1.Pod, container string) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if c.Name != container {
			continue
		}
		if given := p.Annotations[noteImage]; given != "" && (container == containerWorkspace || container == containerHelper) {
			return given
		}
		return c.Image
	}
	return ""
}

// words returns what the cluster says about a Pod that does not run.
func words(p *corev1.Pod) string {
	if p.Status.Reason != "" || p.Status.Message != "" {
		return joined(p.Status.Reason, p.Status.Message)
	}
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return joined(w.Reason, w.Message)
		}
	}
	if text := disruption(p); text != "" {
		return text
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Message != "" {
			return joined(c.Reason, c.Message)
		}
	}
	return string(p.Status.Phase)
}

// disruption returns why the cluster ends a Pod, such as an eviction or a preemption; empty if
// it does not.
func disruption(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return joined(c.Reason, c.Message)
		}
	}
	return ""
}

func joined(reason, message string) string {
	switch {
	case reason == "":
		return message
	case message == "":
		return reason
	}
	return reason + ": " + message
}
