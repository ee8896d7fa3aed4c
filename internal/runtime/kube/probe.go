package kube

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/kube/inside"
	"codehub/internal/workspace"
)

const (
	// probeStart is how long the Pods of a probe may take to start, and probeAnswer how long
	// the servers may take to reach them. Policies may take probeSettle to have effect on a
	// new Pod.
	probeStart  = 50 * time.Second
	probeAnswer = 15 * time.Second
	probeSettle = 15 * time.Second

	// probeLife ends a Pod that a server has left behind, in seconds.
	probeLife = 300
)

// target is what a probe tries to reach.
type target struct{ name, address string }

// metadataAddresses are where clouds serve what a machine may do, with credentials for it: most
// of them, Alibaba Cloud, Azure and Oracle Cloud Classic.
var metadataAddresses = []string{"169.254.169.254:80", "100.100.100.200:80", "168.63.129.16:80", "192.0.0.192:80"}

// probeNetwork returns what a Pod reaches that has the labels of a workspace and should be
// isolated. A *runtime.IsolationError says why that is not known.
func (r *Runtime) probeNetwork(ctx context.Context) (open []target, err error) {
	token := rand.Text()
	from, to := r.probePod("a", token), r.probePod("b", token)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpWithin)
		defer cancel()
		for _, p := range []*corev1.Pod{from, to} {
			if gone := r.removeProbe(ctx, p.Name); gone != nil {
				r.log.Warn("a Pod of the network check was not removed", "pod", p.Name, "err", gone)
			}
		}
	}()
	starting, cancel := context.WithTimeout(ctx, probeStart)
	defer cancel()
	for _, p := range []**corev1.Pod{&from, &to} {
		if err := r.removeProbe(starting, (*p).Name); err != nil {
			return nil, unknown(ctx, err)
		}
		made, err := r.pods().Create(starting, *p, metav1.CreateOptions{})
		if err != nil {
			return nil, unknown(ctx, wrapError(ctx, "create Pod "+(*p).Name, err))
		}
		*p = made
	}
	for _, p := range []**corev1.Pod{&from, &to} {
		now, err := r.await(starting, *p, listens)
		if err != nil {
			return nil, unknown(ctx, err)
		}
		*p = now
	}
	targets := []target{
		{runtime.ReachedWorkspace, address(to, runtime.IDEPort)},
		{runtime.ReachedAPI, r.apiAddress()},
	}
	for _, address := range metadataAddresses {
		targets = append(targets, target{runtime.ReachedMetadata, address})
	}
	if ip := from.Status.HostIP; ip != "" {
		targets = append(targets, target{runtime.ReachedNode, net.JoinHostPort(ip, "10250")})
	}
	return r.ask(ctx, from, to, token, targets)
}

// ask lets one probe try to reach the targets until it reaches none, for probeSettle at most.
// Both have to answer this server before and afterwards.
func (r *Runtime) ask(ctx context.Context, from, to *corev1.Pod, token string, targets []target) ([]target, error) {
	var addresses []string
	for _, t := range targets {
		addresses = append(addresses, t.address)
	}
	answers := func() error {
		for _, p := range []*corev1.Pod{from, to} {
			if _, err := r.askOnce(ctx, p, token, nil); err != nil {
				return fmt.Errorf("pod %s: %w", p.Name, err)
			}
		}
		return nil
	}
	// Also later: policies may cut this server off after the first answers.
	unreached := func(err error) error { return unknown(ctx, fmt.Errorf("%s %w", runtime.MsgUnreached, err)) }
	if err := retry(ctx, probeAnswer, answers); err != nil {
		return nil, unreached(err)
	}
	var open []target
	err := retry(ctx, probeSettle, func() error {
		reached, err := r.askOnce(ctx, from, token, addresses)
		if err != nil {
			return err
		}
		open = slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return !slices.Contains(reached, t.address) })
		if len(open) > 0 {
			return errOpen
		}
		return nil
	})
	if err == nil {
		err = answers() // what was not reached was there
	}
	if err != nil && !errors.Is(err, errOpen) {
		return nil, unreached(err)
	}
	return open, nil
}

var errOpen = errors.New("the Pod is not isolated")

func (r *Runtime) askOnce(ctx context.Context, p *corev1.Pod, token string, addresses []string) ([]string, error) {
	return inside.Ask(ctx, r.probe, address(p, runtime.IDEPort), token, addresses)
}

// retry repeats a call until it succeeds, for a duration at most, and returns its last error.
func retry(ctx context.Context, within time.Duration, f func() error) error {
	for end := time.Now().Add(within); ; {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// unknown makes an error a reason why the isolation is not known, unless the caller's context
// has ended or the cluster did not respond.
func unknown(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, runtime.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &runtime.IsolationError{Unknown: true, Reason: workspace.Cut(err.Error())}
}

// listens is for await: it waits until a probe runs and has an address.
func listens(p *corev1.Pod) (bool, error) {
	if ended(p) {
		return false, fmt.Errorf("pod %s ended: %s", p.Name, words(p))
	}
	s := statusOf(p, containerWorkspace)
	if s != nil && s.State.Running != nil && p.Status.PodIP != "" {
		return true, nil
	}
	return false, refusal(p)
}

// apiAddress is where Pods reach the API server: this server's own way in a cluster.
func (r *Runtime) apiAddress() string {
	u := *r.api.rest.Get().URL()
	if u.Port() == "" {
		return net.JoinHostPort(u.Hostname(), "443")
	}
	return u.Host
}

// probePod returns one of the two Pods of a probe. It is placed as a workspace's Pod, so that
// it has the node and the network of one, with the labels by which policies select workspaces
// and not those by which codehub finds them. The two are on different nodes if they can.
func (r *Runtime) probePod(letter, token string) *corev1.Pod {
	no, yes, uid, life, grace := false, true, int64(workspace.ArchivedUID), int64(probeLife), int64(1)
	labels := map[string]string{labelRole: roleWorkspace, labelProbe: r.cfg.Installation}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: probeName(letter, r.cfg.Installation), Labels: labels},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			ActiveDeadlineSeconds:         &life,
			TerminationGracePeriodSeconds: &grace,
			SecurityContext:               &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Volumes:                       []corev1.Volume{claimVolume(homeVolume, "none")}, // the template may not change it; removed below
			Containers: []corev1.Container{{
				Name: containerWorkspace, Image: r.cfg.ServerImage, ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: "/",
				Command: []string{ServerBinary, inside.Command, inside.Probe, ":" + strconv.Itoa(runtime.IDEPort)},
				Env:     []corev1.EnvVar{{Name: inside.TokenEnv, Value: token}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsNonRoot: &yes, RunAsUser: &uid, RunAsGroup: &uid,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: corev1.PodAffinityTerm{
					TopologyKey: "kubernetes.io/hostname", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{labelProbe: r.cfg.Installation}},
				}}},
			}},
		},
	}
	r.place(p)
	if r.cfg.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &r.cfg.RuntimeClass
	}
	// Of the administrator's template it has what concerns the Pod as a whole.
	own := p.Spec.Containers[0]
	if changed, err := patched(p, r.cfg.Patch); err == nil {
		p = changed
	}
	p.Spec.Volumes, p.Spec.InitContainers, p.Spec.Containers = nil, nil, []corev1.Container{own}
	return p
}

// removeProbe removes a Pod of an earlier probe and waits until it is gone.
func (r *Runtime) removeProbe(ctx context.Context, name string) error {
	p, err := r.pods().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return wrapError(ctx, "read Pod "+name, err)
	case p.Labels[labelProbe] != r.cfg.Installation:
		return fmt.Errorf("pod %s is not codehub's: %w", name, runtime.ErrConflict)
	}
	err = r.remove(ctx, p, 0)
	var busy *runtime.BusyError
	if errors.As(err, &busy) && busy.Step == runtime.StepWaitingNode { // its own words are about a workspace
		err = fmt.Errorf("pod %s of an earlier check cannot be removed: its node %s does not respond", name, p.Spec.NodeName)
	}
	return err
}
