// Package kube implements runtime.Runtime on Kubernetes. Each workspace has a Pod and a
// persistent volume claim in one namespace. Everything that codehub knows about a home is
// on its claim, as labels and annotations, and every change of it names the version that it
// was decided on.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"codehub/internal/base/breaker"
	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace"
)

// Config identifies an installation and says what its workspaces get.
type Config struct {
	// Installation is a UUID. It labels everything that is created; objects without
	// that label are never changed, except a claim that SetAside moves.
	Installation string
	Settings
	// IDEImage has the IDE in the folder account.IDEDir.
	IDEImage string
	// RegistryAuthFile has the logins of this server, in addition to those of the Secrets by
	// which nodes pull; empty: none.
	RegistryAuthFile string
	// Registries are those that this server asks itself.
	Registries registry.Settings
	// PullTimeout is for how long a node's pull of one image does not count towards deadlines.
	PullTimeout time.Duration
	// Sudo lets users become root in their workspaces, within a user namespace.
	Sudo bool
	// Variables are environment variables of each workspace, as NAME=VALUE.
	Variables []string
	// PortURI returns the address of a workspace's ports; nil: workspaces are not told.
	PortURI func(workspace.ID) string
	// Authorities are those of a company, in PEM, which workspaces trust in addition to those
	// of their images; empty: none.
	Authorities []byte

	Log *slog.Logger // nil: none
	// Conditions lists that the cluster does not respond; nil: it is only logged.
	Conditions *health.Monitor
}

// Where Settings.ServerImage has the codehub executable, and the folder of the agent's.
const (
	ServerBinary = "/usr/local/bin/codehub"
	AgentDir     = account.AgentDir
)

// Runtime implements runtime.Runtime on Kubernetes.
type Runtime struct {
	cfg   Config
	rest  *rest.Config
	api   *client
	probe *http.Client
	log   *slog.Logger

	breaker *breaker.Breaker

	podView  *watched[corev1.Pod]
	homeView *watched[corev1.PersistentVolumeClaim]
	// recordView has the marks, and what is known of images.
	recordView *watched[corev1.ConfigMap]
	// policyView has what keeps workspaces from the network.
	policyView *watched[networkingv1.NetworkPolicy]

	isolation isolation
	images    registries
	known     known
	noLogin   *health.Condition // logins at registries cannot be used
	// privateRegistry: the registry of codehub's own images has a private address, and this
	// server may not ask it.
	privateRegistry *health.Condition
	untried         *health.Condition // the last dry run of the settings has not succeeded

	locks          locks[workspace.ID]
	describing     locks[string] // by the name of an image
	noImageVolumes atomic.Bool   // the cluster has refused one; see tools.go

	confirmAfter time.Duration // the constant, except in tests
	// adapt changes Pods before their creation; nil: it does not. Only tests set it.
	adapt func(*corev1.Pod)
}

var _ runtime.Runtime = (*Runtime)(nil)

// New returns a Runtime that has not called Kubernetes yet. While Run is not running, every
// list asks the cluster.
func New(config *rest.Config, cfg Config) (*Runtime, error) {
	if !workspace.ValidID(cfg.Installation) {
		return nil, fmt.Errorf("installation %q is not a UUID", cfg.Installation)
	}
	r := &Runtime{cfg: cfg, log: cfg.Log, confirmAfter: confirmAfter, probe: &http.Client{
		Timeout: probeTimeout,
		// One connection per request: addresses are reused, connections must not be.
		Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
	}}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.breaker = breaker.New(breaker.Config{Name: "engine", Log: r.log, Conditions: cfg.Conditions, Condition: "docker", Probe: r.responds})
	config = rest.CopyConfig(config)
	config.QPS = -1 // the cluster has limits of its own
	config.Wrap(r.breaker.Transport)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return fence{next} })
	api, err := newClient(config)
	if err != nil {
		return nil, err
	}
	r.rest, r.api = config, api
	r.images = registries{client: cfg.Registries.Client(), logins: r.logins, answered: r.answered}
	r.noLogin = cfg.Conditions.New(health.Config{
		Name: "registry-login", Failing: "the logins at registries are not in order", Resolved: "the logins at registries are in order again",
		Level: slog.LevelWarn, Log: cfg.Log,
	})
	r.privateRegistry = cfg.Conditions.New(health.Config{
		Name: "private-registry", Failing: "the registry of codehub's images cannot be asked", Resolved: "the registry of codehub's images can be asked again",
		Level: slog.LevelWarn, Log: cfg.Log,
	})
	r.untried = cfg.Conditions.New(health.Config{
		Name: "settings-check", Failing: "Kubernetes has not accepted workspaces with these settings yet", Resolved: "Kubernetes accepts workspaces with these settings",
		Level: slog.LevelWarn, Log: cfg.Log,
	})
	r.podView = newWatched(r.pods(), &corev1.Pod{}, podItems)
	r.homeView = newWatched(r.claims(), &corev1.PersistentVolumeClaim{}, claimItems)
	r.recordView = newWatched(r.configMaps(), &corev1.ConfigMap{}, recordItems)
	r.policyView = newWatched(r.networkPolicies(), &networkingv1.NetworkPolicy{}, policyItems)
	_, err = r.podView.informer.AddEventHandler(r.podView.arrivals.handler())
	_, failed := r.homeView.informer.AddEventHandler(r.homeView.arrivals.handler())
	if err := errors.Join(err, failed); err != nil {
		return nil, err
	}
	return r, nil
}

// Breaker returns the circuit breaker of calls to the cluster.
func (r *Runtime) Breaker() *breaker.Breaker { return r.breaker }

// Close ends the checks whether the cluster responds again.
func (r *Runtime) Close() error {
	r.breaker.Close()
	return nil
}

// Prepare implements runtime.Runtime. It checks that the cluster responds, that codehub may
// read what it needs, and that workspaces are isolated.
func (r *Runtime) Prepare(ctx context.Context) error {
	if !r.podView.follows() || !r.homeView.follows() { // watches that do show that it does
		if err := r.responds(ctx); err != nil {
			return err
		}
	}
	return r.checkIsolation(ctx)
}

func (r *Runtime) responds(ctx context.Context) error {
	if _, err := r.claims().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return wrapError(ctx, "list persistent volume claims", err)
	}
	_, err := r.pods().List(ctx, metav1.ListOptions{Limit: 1})
	return wrapError(ctx, "list Pods", err)
}

// Disks implements runtime.Runtime. Homes are on no disk of this machine.
func (r *Runtime) Disks(context.Context) ([]runtime.Disk, error) { return nil, nil }

// owns reports whether an object is of this installation and role.
func (r *Runtime) owns(labels map[string]string, role string) bool {
	return labels[labelInstallation] == r.cfg.Installation && labels[labelRole] == role
}

// labels returns the labels of an object.
func (r *Runtime) labels(role string, id workspace.ID, claim string) map[string]string {
	l := map[string]string{labelInstallation: r.cfg.Installation, labelRole: role}
	if id != "" {
		l[labelWorkspace] = string(id)
	}
	if claim != "" {
		l[labelClaim] = claim
	}
	return l
}

// ended reports whether no process of the Pod runs any more, as far as the cluster knows.
func ended(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true
	}
	// The containers say so a little earlier, and none of them starts again.
	n := len(p.Status.ContainerStatuses)
	return p.Spec.RestartPolicy == corev1.RestartPolicyNever && n > 0 && n == len(p.Spec.Containers) &&
		!slices.ContainsFunc(p.Status.ContainerStatuses, runs) && !slices.ContainsFunc(p.Status.InitContainerStatuses, runs)
}

// runs reports whether a container has not ended. A sidecar is an init container that runs as
// long as the others.
func runs(s corev1.ContainerStatus) bool { return s.State.Terminated == nil }

// gated reports whether codehub has not let the Pod start yet.
func gated(p *corev1.Pod) bool { return slices.ContainsFunc(p.Spec.SchedulingGates, ownGate) }

// ownGate reports whether a gate is codehub's.
func ownGate(g corev1.PodSchedulingGate) bool { return g.Name == gate }

func report(progress func(runtime.Progress), step string) {
	if progress != nil {
		progress(runtime.Progress{Step: step})
	}
}

// pollEvery is how often a call looks for a change that it waits for.
const pollEvery = 50 * time.Millisecond

// maxPoll is how often it looks for a change that may take long.
const maxPoll = 5 * time.Second

// pause waits for pollEvery, and returns an error if ctx ends.
func pause(ctx context.Context, what string) error { return pauseFor(ctx, pollEvery, what) }

func pauseFor(ctx context.Context, d time.Duration, what string) error {
	select {
	case <-ctx.Done():
		return wrapError(ctx, what, ctx.Err())
	case <-time.After(d):
		return nil
	}
}
