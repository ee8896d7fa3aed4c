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
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Config identifies an installation and says what its workspaces get.
type Config struct {
	// Installation is a UUID. It labels everything that is created; objects without
	// that label are never changed.
	Installation string
	// Namespace is where workspaces are. It must exist.
	Namespace string
	// StorageClass of homes; empty: the cluster's default.
	StorageClass string
	// HomeSize is the size of a home's volume.
	HomeSize resource.Quantity
	// ServerImage has the codehub executable at ServerBinary; its Pods work on homes, and
	// workspaces get the agent from it.
	ServerImage string
	// IDEImage has the IDE.
	IDEImage string

	CPUs, Memory *resource.Quantity // limits of a workspace; nil: none

	Log *slog.Logger
}

// ServerBinary is the path of the codehub executable in Config.ServerImage.
const ServerBinary = "/usr/local/bin/codehub"

// Runtime implements runtime.Runtime on Kubernetes.
type Runtime struct {
	cfg  Config
	api  kubernetes.Interface
	view *view
	log  *slog.Logger
	now  func() time.Time
}

// New returns a Runtime that has not called Kubernetes yet. Run must be running for calls
// that list objects; until it has, they fail with runtime.ErrUnreachable.
func New(api kubernetes.Interface, cfg Config) (*Runtime, error) {
	if !workspace.ValidID(cfg.Installation) {
		return nil, fmt.Errorf("installation %q is not a UUID", cfg.Installation)
	}
	r := &Runtime{cfg: cfg, api: api, log: cfg.Log, now: time.Now}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.view = newView(api, cfg)
	return r, nil
}

// wrapError wraps an error of Kubernetes. If it did not respond, the result also wraps
// runtime.ErrUnreachable; that includes a deadline, but not a cancellation by the caller. A
// refusal that passes, such as too many requests, is runtime.ErrBusy.
func wrapError(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case ctx.Err() != nil || unreachable(err):
		return fmt.Errorf("%s: %w: %w", what, runtime.ErrUnreachable, err)
	case apierrors.IsTooManyRequests(err), apierrors.IsConflict(err), apierrors.IsServerTimeout(err):
		return &transientError{fmt.Errorf("%s: %w", what, err)}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// transientError is a transient refusal with the cluster's message.
type transientError struct{ error }

func (e *transientError) Unwrap() error { return e.error }

func (e *transientError) Is(target error) bool { return target == runtime.ErrBusy }

func unreachable(err error) bool {
	var transport *url.Error
	var network net.Error
	return errors.As(err, &transport) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}

// fenced is what stands before every write.
func fenced(ctx context.Context, what string) error {
	if err := runtime.Fenced(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// owns says whether an object is of this installation and role.
func (r *Runtime) owns(labels map[string]string, role string) bool {
	return labels[labelInstallation] == r.cfg.Installation && labels[labelRole] == role
}

// labels returns the labels of an object.
func (r *Runtime) labels(role string, id workspace.ID) map[string]string {
	l := map[string]string{labelInstallation: r.cfg.Installation, labelRole: role}
	if id != "" {
		l[labelWorkspace] = string(id)
	}
	return l
}

// running says whether processes of the Pod may run. A Pod that waits for its gate has none,
// and one that has ended has none any more.
func running(p *corev1.Pod) bool {
	return len(p.Spec.SchedulingGates) == 0 && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}
