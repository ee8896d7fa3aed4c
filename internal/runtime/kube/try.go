package kube

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// tryWithin bounds a dry run, and tryAgain is the time to the next one while the last had no
// result.
const (
	tryWithin = 30 * time.Second
	tryAgain  = 10 * time.Second
)

// Try asks the cluster whether it would accept the Pods and volumes of workspaces with these
// settings, and creates nothing. An error is the cluster's refusal of the settings. While the
// cluster does not say, because a quota is full or it does not respond, the condition
// settings-check has the reason, and Run asks again.
func (r *Runtime) Try(ctx context.Context) error {
	trying, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	err := r.dryRun(trying)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.untried.Set(err)
	if errors.Is(err, runtime.ErrBusy) || errors.Is(err, runtime.ErrUnreachable) {
		return nil
	}
	return err
}

// tryLater repeats a dry run that had no result, until ctx ends. A refusal stays a condition.
func (r *Runtime) tryLater(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tryAgain):
		}
		if r.untried.Err() != nil {
			_ = r.Try(ctx) // the condition has it
		}
	}
}

func (r *Runtime) dryRun(ctx context.Context) error {
	const id = workspace.ID("00000000-0000-0000-0000-000000000000")
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	home := r.newClaim(id.VolumeName(), r.labels(roleHome, id, "try"))
	if _, err := r.claims().Create(ctx, home, dry); err != nil {
		return wrapError(ctx, "create a home in namespace "+r.cfg.Namespace, err)
	}
	image := chosenImage{ref: r.cfg.ServerImage, name: r.cfg.ServerImage, policy: pullPolicy(r.cfg.ServerImage)}
	for _, plan := range []func() (*corev1.Pod, error){
		func() (*corev1.Pod, error) {
			return r.workspacePod(runtime.ContainerSpec{
				Workspace: id, UID: workspace.ArchivedUID, Claim: "try", Image: r.cfg.ServerImage, Storage: workspace.StorageKubernetes, VolumeClaim: "try",
			}, home, image, facts{})
		},
		func() (*corev1.Pod, error) {
			return r.pod(onHome{name: seedName(id), role: roleTask, id: id, home: home, image: &image, caps: ownerCaps}), nil
		},
	} {
		for {
			copied := r.copyTools()
			p, err := plan()
			if err == nil {
				_, err = r.submit(ctx, p, dry)
			}
			if err != nil && !copied && r.cannotMount(p, err) {
				continue
			}
			if err != nil {
				return wrapError(ctx, "create a Pod in namespace "+r.cfg.Namespace, err)
			}
			break
		}
	}
	return nil
}
