package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// codehub has no permission to read nodes. What happened to one shows on its Pods: the cluster
// marks them as not ready although their containers are, or deletes them and no kubelet
// confirms that.

// silentAfter is how long after the end of a Pod's grace period its kubelet counts as not
// responding.
const silentAfter = 20 * time.Second

// confirmAfter is how long a node must not have responded before it can be confirmed to be
// dead: a restart of its kubelet or of a switch takes less.
const confirmAfter = 2 * time.Minute

// lost reports whether the node of a Pod does not respond, as far as the Pod shows it. A Pod
// that only takes long to end is not lost: its kubelet may be busy.
func lost(p *corev1.Pod, now time.Time) bool {
	switch {
	case p.Spec.NodeName == "" || ended(p):
		return false
	case unready(p):
		return true
	}
	// Deleted because of its node, before its containers were ready; no kubelet has confirmed it.
	return p.DeletionTimestamp != nil && now.Sub(p.DeletionTimestamp.Time) > silentAfter && evictedByNode(p)
}

// evictedByNode reports whether the cluster deletes a Pod because of a taint of its node.
func evictedByNode(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager"
	})
}

// unready reports whether the cluster has marked a Pod as not ready although its kubelet
// reported that all of its containers are. Pods of codehub's have no readiness gates.
func unready(p *corev1.Pod) bool {
	return len(p.Spec.ReadinessGates) == 0 && condition(p, corev1.PodReady) == corev1.ConditionFalse && condition(p, corev1.ContainersReady) == corev1.ConditionTrue
}

func condition(p *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c.Status
		}
	}
	return corev1.ConditionUnknown
}

// lostSince is when the cluster noticed that the node of a lost Pod does not respond.
func lostSince(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			return c.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil {
		return p.DeletionTimestamp.Time
	}
	return p.CreationTimestamp.Time
}

// silence returns the refusal to wait any longer for the end of a Pod whose node does not
// respond, or nil.
func silence(p *corev1.Pod) error {
	if p.DeletionTimestamp == nil || !lost(p, time.Now()) || time.Since(p.DeletionTimestamp.Time) < silentAfter {
		return nil
	}
	return &runtime.BusyError{Step: runtime.StepWaitingNode, Reason: fmt.Sprintf(workspace.MsgNodeLost, p.Spec.NodeName)}
}

var _ runtime.Nodes = (*Runtime)(nil)

// LostNodes implements runtime.Nodes.
func (r *Runtime) LostNodes(ctx context.Context) ([]runtime.LostNode, error) {
	pods, err := r.podView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	found, now := map[string]*runtime.LostNode{}, time.Now()
	for _, p := range pods {
		if p.Labels[labelInstallation] != r.cfg.Installation || !lost(p, now) {
			continue
		}
		n := found[p.Spec.NodeName]
		if n == nil {
			n = &runtime.LostNode{Name: p.Spec.NodeName, Since: lostSince(p)}
			found[n.Name] = n
		}
		if since := lostSince(p); since.Before(n.Since) {
			n.Since = since
		}
		if id := workspace.ID(p.Labels[labelWorkspace]); id != "" && !slices.Contains(n.Workspaces, id) {
			n.Workspaces = append(n.Workspaces, id)
		}
	}
	var list []runtime.LostNode
	for _, n := range found {
		slices.Sort(n.Workspaces)
		list = append(list, *n)
	}
	slices.SortFunc(list, func(a, b runtime.LostNode) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// NodeIsDead implements runtime.Nodes. It asks the cluster itself which Pods are lost now. Those of
// the network check count, too: while one is there, the check cannot run again.
func (r *Runtime) NodeIsDead(ctx context.Context, name string) (int, error) {
	var pods []corev1.Pod
	for _, label := range []string{labelInstallation, labelProbe} {
		list, err := r.pods().List(ctx, metav1.ListOptions{LabelSelector: label + "=" + r.cfg.Installation})
		if err != nil {
			return 0, wrapError(ctx, "list Pods", err)
		}
		pods = append(pods, list.Items...)
	}
	now, removed, recent := time.Now(), 0, time.Duration(0)
	var failed error
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != name || !lost(p, now) {
			continue
		}
		if early := r.confirmAfter - now.Sub(lostSince(p)); early > 0 {
			recent = max(recent, early)
			continue
		}
		// Zero removes the Pod without its kubelet's word.
		seconds := int64(0)
		err := r.pods().Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds, Preconditions: &metav1.Preconditions{UID: &p.UID, ResourceVersion: &p.ResourceVersion}})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			failed = errors.Join(failed, wrapError(ctx, "delete Pod "+p.Name, err))
		default:
			removed++
			r.log.Warn("Pod removed without its node's confirmation, as an administrator has confirmed that the node is dead", "pod", p.Name, "node", name, "workspace", p.Labels[labelWorkspace])
			r.podView.awaitGone(ctx, p)
		}
	}
	if failed == nil && removed == 0 && recent > 0 {
		return 0, &runtime.BusyError{Step: runtime.StepWaitingNode, Reason: fmt.Sprintf("node %s has stopped responding only just now; it can be confirmed to be dead in %s", name, recent.Round(time.Second))}
	}
	if failed == nil && removed == 0 {
		return 0, fmt.Errorf("node %s: %w", name, runtime.ErrNotFound)
	}
	return removed, failed
}
