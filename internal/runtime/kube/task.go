package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/kube/inside"
	"codehub/internal/workspace"
)

// Fingerprint implements runtime.Runtime.
func (r *Runtime) Fingerprint(ctx context.Context, id workspace.ID, claim string, progress func(runtime.Progress)) (string, error) {
	unlock, err := r.locks.lock(ctx, id)
	if err != nil {
		return "", err
	}
	defer unlock()
	home, err := r.home(ctx, id, claim)
	if err != nil {
		return "", err
	}
	print, _, err := r.runTask(ctx, onHome{
		name: checkName(id), id: id, home: home, readOnly: true, caps: []corev1.Capability{"DAC_OVERRIDE", "FOWNER"},
		command: []string{inside.Command, inside.Fingerprint, runtime.JobHomeDir},
	}, runtime.StepChecking, nil, progress)
	if err == nil && print == "" {
		err = errors.New("the helper printed no fingerprint")
	}
	return print, err
}

// OwnHome implements runtime.Runtime.
func (r *Runtime) OwnHome(ctx context.Context, spec runtime.OwnSpec, progress func(runtime.Progress)) error {
	if spec.UID == 0 {
		return errRoot
	}
	unlock, err := r.locks.lock(ctx, spec.Workspace)
	if err != nil {
		return err
	}
	defer unlock()
	home, err := r.home(ctx, spec.Workspace, spec.VolumeClaim)
	if err != nil {
		return err
	}
	var from []string
	for _, uid := range spec.From {
		from = append(from, strconv.FormatUint(uint64(uid), 10))
	}
	_, _, err = r.runTask(ctx, onHome{
		name: ownName(spec.Workspace), id: spec.Workspace, home: home, caps: ownerCaps,
		command: []string{inside.Command, inside.Own, strconv.FormatUint(uint64(spec.UID), 10), strings.Join(from, ","), runtime.JobHomeDir},
	}, runtime.StepOwning, nil, progress)
	return err
}

var errRoot = errors.New("a workspace cannot run as root")

// runTask runs a Pod on a home that nothing else uses, removes it, and returns the last line
// that it printed and the Pod as it was last. may agrees once the Pod exists. A Pod that an earlier call left is
// replaced, since its result is not needed any more.
func (r *Runtime) runTask(ctx context.Context, o onHome, step string, may admission, progress func(runtime.Progress)) (string, *corev1.Pod, error) {
	for switched := false; ; switched = true {
		o.role = roleTask
		copied := r.copyTools()
		line, p, err := r.tryTask(ctx, o, step, may, progress)
		if switched {
			r.cannotStart(err)
		}
		if err == nil || copied || switched || !r.cannotMount(p, err) {
			return line, p, err
		}
	}
}

func (r *Runtime) tryTask(ctx context.Context, o onHome, step string, may admission, progress func(runtime.Progress)) (line string, p *corev1.Pod, err error) {
	if err := r.removeNamed(ctx, o.name, roleTask); err != nil {
		return "", nil, err
	}
	p, err = r.create(ctx, r.pod(o))
	if errors.Is(err, errExists) {
		return "", nil, &runtime.BusyError{Reason: "another call works on volume " + o.home.Name}
	}
	if err != nil {
		return "", nil, err
	}
	made := p
	defer func() {
		// Also after a cancellation: otherwise the Pod would count as a user of the home.
		err = errors.Join(err, r.discard(ctx, made))
	}()
	opened, err := r.tryAdmit(ctx, p, may)
	if err != nil {
		return "", p, err
	}
	report(progress, step)
	last, exit := "", 0
	p = opened
	if !o.shared {
		p, err = r.awaitHelper(ctx, p, step, progress)
	}
	if err == nil {
		p, exit, err = r.follow(ctx, p, step, progress, func(b []byte) {
			last = string(b)
			if n, err := strconv.ParseInt(last, 10, 64); err == nil && progress != nil {
				progress(runtime.Progress{Step: step, Entries: n})
			}
		})
	}
	switch {
	case errors.Is(err, errGone):
		return "", p, &runtime.BusyError{Reason: "another call works on volume " + o.home.Name}
	case err == nil && exit != 0:
		err = fmt.Errorf("pod %s ended with code %d: %s", p.Name, exit, workspace.Cut(last))
	}
	return last, p, err
}

// removeNamed removes the Pod with a name, if there is one. One of another role or
// installation is an error.
func (r *Runtime) removeNamed(ctx context.Context, name, role string) error {
	p, err := r.named(ctx, name, role)
	if p == nil || err != nil {
		return err
	}
	return r.remove(ctx, p, 0)
}

// named returns the Pod with a name, or nil. One of another role or installation is
// runtime.ErrConflict.
func (r *Runtime) named(ctx context.Context, name, role string) (*corev1.Pod, error) {
	p, err := r.pods().Get(ctx, name, metav1.GetOptions{})
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, wrapError(ctx, "read Pod "+name, err)
	case !r.owns(p.Labels, role):
		return nil, fmt.Errorf("pod %s is not codehub's: %w", name, runtime.ErrConflict)
	}
	return p, nil
}
