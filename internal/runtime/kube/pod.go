package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/workspace"
)

// Containers implements runtime.Runtime.
func (r *Runtime) Containers(ctx context.Context) ([]runtime.Container, error) {
	pods, err := r.podView.list(ctx)
	if err != nil {
		return nil, wrapError(ctx, "list Pods", err)
	}
	var list []runtime.Container
	for _, p := range pods {
		if r.owns(p.Labels, roleWorkspace) && p.Name == workspace.ID(p.Labels[labelWorkspace]).ContainerName() {
			list = append(list, container(p))
		}
	}
	return list, nil
}

// container describes a workspace's Pod. A Pod that waits for its gate, a node, its volume
// or its image was created and is not started yet.
func container(p *corev1.Pod) runtime.Container {
	generation, _ := strconv.Atoi(p.Annotations[noteGeneration])
	c := runtime.Container{
		ID: idOf(p), Workspace: workspace.ID(p.Labels[labelWorkspace]), Claim: p.Labels[labelClaim],
		Image: p.Annotations[noteImage], ImageNote: p.Annotations[noteImageNote], ImageGeneration: generation,
		EnvDigest: p.Annotations[noteEnvironment], Size: cmp.Or(p.Annotations[noteSize], workspace.DefaultSize), State: runtime.ContainerCreated, Detail: words(p),
	}
	image := imageOn(p, containerWorkspace)
	c.ImageID, c.ImageDigest = image.ID, image.Digest
	if s := statusOf(p, containerWorkspace); s != nil {
		switch {
		case s.State.Terminated != nil:
			c.State = runtime.ContainerExited
			c.Detail = exitWords(p, s.State.Terminated)
		case s.State.Running != nil && p.Status.PodIP != "":
			c.State, c.Detail = runtime.ContainerRunning, "running"
		}
	}
	if (p.DeletionTimestamp != nil || ended(p)) && c.State != runtime.ContainerExited {
		// It was evicted, its node is lost, or it is being deleted.
		c.State, c.Detail = runtime.ContainerExited, words(p)
	}
	if lost(p, time.Now()) {
		c.LostNode = p.Spec.NodeName
	}
	if c.State == runtime.ContainerRunning {
		c.Addr = address(p, runtime.IDEPort)
	}
	return c
}

// exitWords returns why a workspace's container has ended.
func exitWords(p *corev1.Pod, end *corev1.ContainerStateTerminated) string {
	text := fmt.Sprintf("Exited (%d)", end.ExitCode)
	switch {
	case end.Reason == "OOMKilled":
		return text + " OOMKilled. " + outOfMemory(p)
	case p.Status.Reason != "" || p.Status.Message != "": // such as Evicted
		return text + " " + joined(p.Status.Reason, p.Status.Message)
	case disruption(p) != "":
		return text + " " + disruption(p)
	}
	return text + " " + joined(end.Reason, end.Message)
}

func address(p *corev1.Pod, port int) string {
	return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
}

// StartContainer implements runtime.Runtime. If no node has room for the Pod, it stays and
// the error is runtime.ErrBusy: the next call waits for it again.
func (r *Runtime) StartContainer(ctx context.Context, spec runtime.ContainerSpec, progress func(runtime.Progress)) (runtime.Container, error) {
	if spec.UID == 0 {
		return runtime.Container{}, errRoot
	}
	report(progress, runtime.StepCreating)
	var started *corev1.Pod
	err := r.withImage(ctx, spec.Image, spec.Choice, func(c chosenImage) error {
		var err error
		started, err = r.startWith(ctx, spec, c, progress)
		return err
	})
	if err != nil {
		return runtime.Container{}, err
	}
	return container(started), nil
}

// startWith starts the workspace with an image. A Pod that cannot start is removed.
func (r *Runtime) startWith(ctx context.Context, spec runtime.ContainerSpec, c chosenImage, progress func(runtime.Progress)) (*corev1.Pod, error) {
	for switched := false; ; switched = true {
		copied := r.copyTools()
		p, err := r.tryStart(ctx, spec, c, progress)
		if err == nil {
			return p, nil
		}
		var refused *startError
		var pull *runtime.PullError
		if p != nil && (errors.As(err, &refused) || errors.As(err, &pull)) {
			// It is of no use; the error says why.
			if gone := r.discard(ctx, p); gone != nil {
				return nil, gone
			}
			if switched {
				r.cannotStart(err)
			}
		}
		if !copied && !switched && r.cannotMount(p, err) {
			continue
		}
		return nil, err
	}
}

// tryStart returns the workspace's Pod once its process runs. With an error it returns the
// Pod as it is then, unless it has none.
func (r *Runtime) tryStart(ctx context.Context, spec runtime.ContainerSpec, c chosenImage, progress func(runtime.Progress)) (*corev1.Pod, error) {
	home, err := r.knownHome(ctx, spec.Workspace, spec.VolumeClaim)
	if err != nil {
		return nil, err
	}
	if err := r.grow(ctx, home, spec.Size.Disk); err != nil {
		return nil, err
	}
	p, err := r.createWorkspace(ctx, spec, home, c, progress)
	if err != nil {
		return nil, err
	}
	report(progress, runtime.StepStarting)
	if gated(p) {
		if p, err = r.admit(ctx, p, nil); err != nil {
			return nil, err
		}
	}
	p, err = r.awaitStep(ctx, p, runtime.StepStarting, progress, hasAddress)
	if err == nil && container(p).State == runtime.ContainerExited {
		err = fmt.Errorf("pod %s ended at once: %s", p.Name, container(p).Detail)
	}
	return p, err
}

// createWorkspace returns the workspace's Pod, which it creates unless there is one.
func (r *Runtime) createWorkspace(ctx context.Context, spec runtime.ContainerSpec, home *corev1.PersistentVolumeClaim, c chosenImage, progress func(runtime.Progress)) (*corev1.Pod, error) {
	f, c, err := r.factsOf(ctx, c, home, progress)
	var used *runtime.BusyError
	if errors.As(err, &used) && used.Container == spec.Workspace.ContainerName() {
		return r.adopt(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	if f.Included && len(f.Command) == 0 {
		return nil, fmt.Errorf("the image %.200q has the label %s=%s, but neither ENTRYPOINT nor CMD", spec.Image, account.LabelIDE, account.IDEIncluded)
	}
	planned, err := r.workspacePod(spec, home, c, f)
	if err != nil {
		return nil, err
	}
	p, err := r.create(ctx, planned)
	if errors.Is(err, errExists) {
		return r.adopt(ctx, spec)
	}
	return p, err
}

// hasAddress is for await: it waits until the workspace's process runs and can be reached.
func hasAddress(p *corev1.Pod) (bool, error) {
	if container(p).State != runtime.ContainerCreated {
		return true, nil
	}
	return false, refusal(p)
}

// adopt returns the workspace's existing Pod if it is of the same claim and has not ended.
func (r *Runtime) adopt(ctx context.Context, spec runtime.ContainerSpec) (*corev1.Pod, error) {
	p, err := r.named(ctx, spec.Workspace.ContainerName(), roleWorkspace)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, &runtime.BusyError{Reason: "Pod " + spec.Workspace.ContainerName() + " has just been removed"}
	}
	if c := container(p); c.Claim != spec.Claim || c.State == runtime.ContainerExited {
		return nil, fmt.Errorf("pod %s (%s): %w", p.Name, c.Detail, runtime.ErrConflict)
	}
	return p, nil
}

// RemoveContainer implements runtime.Runtime.
func (r *Runtime) RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error {
	p, err := r.identified(ctx, containerID, roleWorkspace)
	if p == nil || err != nil {
		return err
	}
	return r.remove(ctx, p, grace)
}

// Upstream implements runtime.Runtime.
func (r *Runtime) Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error) {
	p, err := r.workspacePodOf(ctx, id)
	if err != nil {
		return runtime.Upstream{}, err
	}
	c := container(p)
	if c.State != runtime.ContainerRunning {
		return runtime.Upstream{}, runtime.ErrNotFound
	}
	up := runtime.Upstream{ContainerID: c.ID, Addr: c.Addr, Agent: address(p, runtime.AgentPort)}
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == runtime.SecretEnv {
			up.Secret = e.Value
		}
	}
	return up, nil
}

// workspacePodOf returns the Pod of a workspace, or runtime.ErrNotFound.
func (r *Runtime) workspacePodOf(ctx context.Context, id workspace.ID) (*corev1.Pod, error) {
	// A Pod that has been removed a moment ago ends the connection: others do not have its secret.
	if p := r.podView.get(r.cfg.Namespace, id.ContainerName()); p != nil && r.owns(p.Labels, roleWorkspace) && container(p).State == runtime.ContainerRunning {
		return p, nil
	}
	p, err := r.named(ctx, id.ContainerName(), roleWorkspace)
	if errors.Is(err, runtime.ErrConflict) || err == nil && p == nil {
		return nil, runtime.ErrNotFound
	}
	return p, err
}

// Probe implements runtime.Runtime.
func (r *Runtime) Probe(ctx context.Context, c runtime.Container) error {
	if c.Addr == "" {
		return errors.New("the Pod has no address")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Addr+"/healthz", nil)
	if err != nil {
		return err
	}
	res, err := r.probe.Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the IDE responded with status %d", res.StatusCode)
	}
	return nil
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	p, err := r.workspacePodOf(ctx, id)
	if err != nil {
		return err
	}
	options := &corev1.PodLogOptions{Container: containerWorkspace, Follow: follow}
	if tail > 0 {
		lines := int64(tail)
		options.TailLines = &lines
	}
	body, err := r.readLog(ctx, p.Name, options)
	if apierrors.IsNotFound(err) {
		return runtime.ErrNotFound
	}
	if apierrors.IsBadRequest(err) && statusOf(p, containerWorkspace) == nil {
		return nil // it has not started, so it has no output
	}
	if err != nil {
		return wrapError(ctx, "read the log", err)
	}
	defer body.Close()
	_, err = io.Copy(w, body)
	if follow && ctx.Err() != nil {
		return nil
	}
	return wrapError(ctx, "read the log", err)
}
