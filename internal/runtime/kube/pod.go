package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// Where a workspace's Pod has the programs of codehub's.
const (
	agentDir = "/opt/codehub-agent"
	ideDir   = "/opt/codehub-ide"
)

// Containers implements runtime.Runtime.
func (r *Runtime) Containers(ctx context.Context) ([]runtime.Container, error) {
	pods, err := r.listPods(ctx, roleWorkspace)
	if err != nil {
		return nil, err
	}
	var list []runtime.Container
	for _, p := range pods {
		list = append(list, container(p))
	}
	return list, nil
}

// container describes a workspace's Pod. A Pod that waits for its gate, for a node, for its
// volume or for its image was created; it is not started yet.
func container(p *corev1.Pod) runtime.Container {
	generation, _ := strconv.Atoi(p.Annotations[noteGeneration])
	c := runtime.Container{
		ID: string(p.UID), Workspace: workspace.ID(p.Labels[labelWorkspace]), Claim: p.Labels[labelClaim],
		Image: p.Annotations[noteImage], ImageNote: p.Annotations[noteImageNote], ImageGeneration: generation,
		EnvDigest: p.Annotations[noteEnvironment], State: runtime.ContainerCreated, Detail: string(p.Status.Phase),
	}
	if s := status(p); s != nil {
		c.ImageID = s.ImageID
		switch {
		case s.State.Terminated != nil:
			c.State, c.Detail = runtime.ContainerExited, fmt.Sprintf("Exited (%d) %s", s.State.Terminated.ExitCode, s.State.Terminated.Reason)
		case s.State.Running != nil && p.Status.PodIP != "":
			c.State, c.Detail = runtime.ContainerRunning, "running"
			c.Addr = address(p, runtime.IDEPort)
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			c.Detail = s.State.Waiting.Reason
		}
	}
	if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		c.State, c.Addr = runtime.ContainerExited, ""
	}
	return c
}

func status(p *corev1.Pod) *corev1.ContainerStatus {
	i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == containerWorkspace })
	if i < 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[i]
}

func address(p *corev1.Pod, port int) string {
	return net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port))
}

// StartContainer implements runtime.Runtime. The Pod is created with a gate, then its home
// is read, and then the gate is removed: a Pod whose home is another's never runs.
func (r *Runtime) StartContainer(ctx context.Context, spec runtime.ContainerSpec, progress func(runtime.Progress)) (runtime.Container, error) {
	if !workspace.ValidID(string(spec.Workspace)) {
		return runtime.Container{}, fmt.Errorf("workspace %q is not a UUID", spec.Workspace)
	}
	if err := fenced(ctx, "create Pod"); err != nil {
		return runtime.Container{}, err
	}
	report(progress, runtime.StepCreating)
	pod, err := r.pods().Create(ctx, r.workspacePod(spec), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		if pod, err = r.adopt(ctx, spec); err != nil {
			return runtime.Container{}, err
		}
	case err != nil:
		return runtime.Container{}, wrapError(ctx, "create Pod", err)
	default:
		r.view.pods.wrote(pod)
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		if _, err := r.home(ctx, spec.Workspace, spec.VolumeClaim); err != nil {
			return runtime.Container{}, errors.Join(err, r.remove(ctx, pod, 0))
		}
		report(progress, runtime.StepStarting)
		if pod, err = r.open(ctx, pod); err != nil {
			return runtime.Container{}, err
		}
	}
	return r.awaitStart(ctx, pod, progress)
}

func (r *Runtime) pods() typed.PodInterface { return r.api.CoreV1().Pods(r.cfg.Namespace) }

// adopt returns the workspace's Pod if it is of the same claim and has not ended.
func (r *Runtime) adopt(ctx context.Context, spec runtime.ContainerSpec) (*corev1.Pod, error) {
	p, err := r.pods().Get(ctx, spec.Workspace.ContainerName(), metav1.GetOptions{})
	if err != nil {
		return nil, wrapError(ctx, "read Pod", err)
	}
	c := container(p)
	if !r.owns(p.Labels, roleWorkspace) || c.Claim != spec.Claim || c.State == runtime.ContainerExited {
		return nil, fmt.Errorf("Pod %s (%s): %w", p.Name, c.Detail, runtime.ErrConflict)
	}
	return p, nil
}

// open removes a Pod's gate.
func (r *Runtime) open(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	if err := fenced(ctx, "change Pod"); err != nil {
		return nil, err
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"spec":{"schedulingGates":[]}}`, p.UID, p.ResourceVersion)
	opened, err := r.pods().Patch(ctx, p.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		return nil, wrapError(ctx, "change Pod", err)
	}
	r.view.pods.wrote(opened)
	return opened, nil
}

// awaitStart waits until the workspace's process runs, or until it is known why it does not.
func (r *Runtime) awaitStart(ctx context.Context, p *corev1.Pod, progress func(runtime.Progress)) (runtime.Container, error) {
	selector := fields.OneTermEqualSelector("metadata.name", p.Name).String()
	events, err := r.pods().Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: p.ResourceVersion})
	if err != nil {
		return runtime.Container{}, wrapError(ctx, "watch Pod", err)
	}
	defer events.Stop()
	for {
		c := container(p)
		if c.State == runtime.ContainerRunning {
			return c, nil
		}
		if c.State == runtime.ContainerExited {
			return c, fmt.Errorf("Pod %s ended at once: %s", p.Name, c.Detail)
		}
		if err := why(p); err != nil {
			return c, err
		}
		select {
		case <-ctx.Done():
			return c, wrapError(ctx, "start Pod", ctx.Err())
		case e, ok := <-events.ResultChan():
			if !ok {
				return c, fmt.Errorf("start Pod: %w: the watch ended", runtime.ErrUnreachable)
			}
			switch next, is := e.Object.(*corev1.Pod); {
			case e.Type == watch.Deleted:
				return c, fmt.Errorf("Pod %s was removed while it started", p.Name)
			case !is:
				return c, wrapError(ctx, "watch Pod", apierrors.FromObject(e.Object))
			default:
				p = next
			}
		}
	}
}

// why returns the cluster's reason why a Pod does not start, once waiting alone will not help.
func why(p *corev1.Pod) error {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if s.State.Waiting == nil {
			continue
		}
		switch s.State.Waiting.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			return &runtime.PullError{Image: s.Image, Message: s.State.Waiting.Message}
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return fmt.Errorf("Pod %s: %s", p.Name, s.State.Waiting.Message)
		}
	}
	return nil
}

// RemoveContainer implements runtime.Runtime.
func (r *Runtime) RemoveContainer(ctx context.Context, containerID string, grace time.Duration) error {
	pods, err := r.listPods(ctx, roleWorkspace)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if string(p.UID) == containerID {
			return r.remove(ctx, p, grace)
		}
	}
	return nil
}

// remove deletes a Pod and waits until its processes have ended, as the cluster knows it. A
// Pod on a node that does not respond stays until somebody says that the node is dead.
func (r *Runtime) remove(ctx context.Context, p *corev1.Pod, grace time.Duration) error {
	if err := fenced(ctx, "delete Pod"); err != nil {
		return err
	}
	// Zero would remove the Pod from the cluster before its processes have ended.
	seconds := max(int64(grace.Seconds()), 1)
	if len(p.Spec.SchedulingGates) > 0 {
		seconds = 0 // it has none
	}
	err := r.pods().Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &seconds, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another has its name
	}
	if err != nil {
		return wrapError(ctx, "delete Pod", err)
	}
	return r.awaitPodGone(ctx, p)
}

// awaitPodGone waits until a Pod is gone.
func (r *Runtime) awaitPodGone(ctx context.Context, p *corev1.Pod) error {
	for {
		now, err := r.pods().Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.UID != p.UID {
			return nil
		}
		if err != nil {
			return wrapError(ctx, "read Pod", err)
		}
		select {
		case <-ctx.Done():
			return wrapError(ctx, "remove Pod", ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Upstream implements runtime.Runtime.
func (r *Runtime) Upstream(ctx context.Context, id workspace.ID) (runtime.Upstream, error) {
	p, err := r.pods().Get(ctx, id.ContainerName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return runtime.Upstream{}, wrapError(ctx, "read Pod", err)
	}
	if err != nil || !r.owns(p.Labels, roleWorkspace) || container(p).State != runtime.ContainerRunning {
		return runtime.Upstream{}, runtime.ErrNotFound
	}
	up := runtime.Upstream{ContainerID: string(p.UID), Addr: address(p, runtime.IDEPort), Agent: address(p, runtime.AgentPort)}
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == runtime.SecretEnv {
			up.Secret = e.Value
		}
	}
	return up, nil
}

// Probe implements runtime.Runtime.
func (r *Runtime) Probe(ctx context.Context, c runtime.Container) error {
	if c.Addr == "" {
		return errors.New("the Pod has no address yet")
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
		return fmt.Errorf("the IDE answers with status %d", res.StatusCode)
	}
	return nil
}

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error {
	p, err := r.pods().Get(ctx, id.ContainerName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return wrapError(ctx, "read Pod", err)
	}
	if err != nil || !r.owns(p.Labels, roleWorkspace) {
		return runtime.ErrNotFound
	}
	opts := &corev1.PodLogOptions{Container: containerWorkspace, Follow: follow}
	if tail > 0 {
		lines := int64(tail)
		opts.TailLines = &lines
	}
	body, err := r.pods().GetLogs(p.Name, opts).Stream(ctx)
	if err != nil {
		return wrapError(ctx, "read the log", err)
	}
	defer body.Close()
	_, err = io.Copy(w, body)
	return wrapError(ctx, "read the log", err)
}

// workspacePod is the Pod of a workspace, before the administrator's changes of it.
func (r *Runtime) workspacePod(spec runtime.ContainerSpec) *corev1.Pod {
	labels := r.labels(roleWorkspace, spec.Workspace)
	labels[labelClaim] = spec.Claim
	uid := int64(workspace.ArchivedUID)
	no, yes := false, true
	env := maps.Clone(spec.Env)
	if env == nil {
		env = map[string]string{}
	}
	if spec.TimeZone != "" && env["TZ"] == "" {
		env["TZ"] = spec.TimeZone
	}
	env[runtime.SecretEnv] = spec.Secret
	env["HOME"] = runtime.HomeDir
	var list []corev1.EnvVar
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, corev1.EnvVar{Name: name, Value: env[name]})
	}
	limits := corev1.ResourceList{}
	if r.cfg.CPUs != nil {
		limits[corev1.ResourceCPU] = *r.cfg.CPUs
	}
	if r.cfg.Memory != nil {
		limits[corev1.ResourceMemory] = *r.cfg.Memory
	}
	confined := &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, RunAsUser: &uid, RunAsGroup: &uid,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Workspace.ContainerName(), Labels: labels,
			Annotations: map[string]string{
				noteImage: spec.Image, noteEnvironment: spec.EnvDigest, noteGeneration: strconv.Itoa(spec.Choice.Generation), noteVolumeClaim: spec.VolumeClaim,
			},
		},
		Spec: corev1.PodSpec{
			SchedulingGates:              []corev1.PodSchedulingGate{{Name: gate}},
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			EnableServiceLinks:           &no,
			Hostname:                     spec.Hostname,
			SecurityContext: &corev1.PodSecurityContext{
				FSGroup: &uid, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			InitContainers: []corev1.Container{{
				Name: containerTools, Image: r.cfg.ServerImage, Command: []string{ServerBinary, "copy-agent", agentDir + "/codehub"},
				SecurityContext: confined,
				VolumeMounts:    []corev1.VolumeMount{{Name: "agent", MountPath: agentDir}},
			}},
			Containers: []corev1.Container{{
				Name: containerWorkspace, Image: spec.Image, Command: []string{agentDir + "/codehub", runtime.AgentCommand, "--", ideDir + "/start"},
				WorkingDir: "/", Env: list, SecurityContext: confined,
				Resources: corev1.ResourceRequirements{Limits: limits},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "home", MountPath: runtime.HomeDir},
					{Name: "agent", MountPath: agentDir, ReadOnly: true},
					{Name: "ide", MountPath: ideDir, ReadOnly: true},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "home", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: spec.Workspace.VolumeName()}}},
				{Name: "agent", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "ide", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: r.cfg.IDEImage, PullPolicy: corev1.PullIfNotPresent}}},
			},
		},
	}
}
