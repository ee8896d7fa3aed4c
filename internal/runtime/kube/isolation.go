package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"

	"codehub/internal/runtime"
)

// NetworkPolicies isolate workspaces, and a cluster may have none or ignore them. Two Pods
// with the labels of a workspace show it: the server reaches both, so they run and listen;
// one then tries to reach the other and what else the policies should keep from it.

// isolation is the result of the last check.
type isolation struct {
	mu        sync.Mutex // held by a check
	policies  string     // versions of the policies at that time
	checkedAt time.Time
	open      error // *runtime.IsolationError, or nil
}

// A check is repeated when the policies change, and otherwise after these intervals.
const (
	isolationEvery      = time.Hour
	isolationEveryWrong = 5 * time.Minute
)

// checkIsolation returns a *runtime.IsolationError if workspaces are not isolated, or if that
// cannot be checked. Most calls return the result of an earlier one.
func (r *Runtime) checkIsolation(ctx context.Context) error {
	policies, err := r.policies(ctx)
	if err != nil {
		return err
	}
	r.isolation.mu.Lock()
	defer r.isolation.mu.Unlock()
	every := isolationEvery
	if r.isolation.open != nil {
		every = isolationEveryWrong
	}
	now := versions(policies)
	if last := r.isolation.checkedAt; !last.IsZero() && now == r.isolation.policies && time.Since(last) < every {
		return r.isolation.open
	}
	open, err := r.probeNetwork(ctx)
	var unknown *runtime.IsolationError
	if err != nil && !errors.As(err, &unknown) {
		return err
	}
	if err == nil && len(open) > 0 {
		err = &runtime.IsolationError{Reason: r.whyOpen(policies, open)}
	}
	r.isolation.policies, r.isolation.checkedAt, r.isolation.open = now, time.Now(), err
	return err
}

// policies returns the NetworkPolicies of the workspaces' namespace; none if codehub may not
// read them, since they only explain what a check finds.
func (r *Runtime) policies(ctx context.Context) ([]*networkingv1.NetworkPolicy, error) {
	list, err := r.policyView.list(ctx)
	if err := wrapError(ctx, "list NetworkPolicies", err); errors.Is(err, runtime.ErrUnreachable) || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		r.log.Debug("NetworkPolicies cannot be read", "err", err)
		return nil, nil
	}
	return list, nil
}

// versions identifies the present content of the policies.
func versions(policies []*networkingv1.NetworkPolicy) string {
	var list []string
	for _, p := range policies {
		list = append(list, string(p.UID)+"/"+p.ResourceVersion)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// covered reports whether policies select a Pod with the labels in both directions.
func covered(policies []*networkingv1.NetworkPolicy, labels map[string]string) bool {
	has := func(kind networkingv1.PolicyType) bool {
		return slices.ContainsFunc(policies, func(p *networkingv1.NetworkPolicy) bool {
			selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			return err == nil && selector.Matches(k8slabels.Set(labels)) && slices.Contains(p.Spec.PolicyTypes, kind)
		})
	}
	return has(networkingv1.PolicyTypeIngress) && has(networkingv1.PolicyTypeEgress)
}

// whyOpen says what a workspace reached, and why.
func (r *Runtime) whyOpen(policies []*networkingv1.NetworkPolicy, open []target) string {
	why := runtime.MsgPoliciesOpen
	switch {
	case !covered(policies, r.probePod("a", "").Labels):
		why = fmt.Sprintf(runtime.MsgNoPolicies, r.cfg.Namespace)
	case slices.ContainsFunc(open, func(t target) bool { return t.name == runtime.ReachedWorkspace }):
		why = runtime.MsgPoliciesIgnored
	}
	var reached []string
	for _, t := range open {
		reached = append(reached, t.name+" ("+t.address+")")
	}
	return why + " " + runtime.MsgReached + " " + strings.Join(reached, ", ")
}
