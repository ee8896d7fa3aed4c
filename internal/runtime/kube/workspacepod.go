package kube

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
)

// workspacePod returns the Pod of a workspace. It is within the Pod security standard
// "restricted". It has no fsGroup: the cluster would change the group and the modes of the
// home's files, and OwnHome has given them to the workspace's user already. The error is that
// of the administrator's Pod template.
func (r *Runtime) workspacePod(spec runtime.ContainerSpec, home *corev1.PersistentVolumeClaim) (*corev1.Pod, error) {
	no, yes, uid := false, true, int64(spec.UID)
	limits := corev1.ResourceList{}
	if spec.Size.NanoCPUs > 0 {
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(spec.Size.NanoCPUs/1e6, resource.DecimalSI)
	}
	if spec.Size.Memory > 0 {
		limits[corev1.ResourceMemory] = *resource.NewQuantity(spec.Size.Memory, resource.BinarySI)
	}
	container := corev1.Container{
		Name: containerWorkspace, Image: imageRef(spec.Image, spec.Choice), ImagePullPolicy: corev1.PullIfNotPresent,
		Command:    []string{agentPath, runtime.AgentCommand, "--", ideStart},
		WorkingDir: "/", // the user may not enter the image's
		Env:        environment(spec),
		Resources:  corev1.ResourceRequirements{Limits: limits},
		Ports:      []corev1.ContainerPort{{Name: "ide", ContainerPort: runtime.IDEPort}, {Name: "agent", ContainerPort: runtime.AgentPort}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, RunAsNonRoot: &yes, RunAsUser: &uid, RunAsGroup: &uid,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: homeVolume, MountPath: runtime.HomeDir, SubPath: homePath}},
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: spec.Workspace.ContainerName(), Labels: r.labels(roleWorkspace, spec.Workspace, spec.Claim),
			Annotations: map[string]string{
				noteVolumeClaim: spec.VolumeClaim, noteVolumeUID: string(home.UID),
				noteImage: spec.Image, noteGeneration: strconv.Itoa(spec.Choice.Generation), noteEnvironment: spec.EnvDigest, noteSize: spec.Size.Name,
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			EnableServiceLinks:           &no,
			Hostname:                     spec.Hostname,
			SecurityContext:              &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Volumes:                      []corev1.Volume{claimVolume(homeVolume, home.Name)},
		},
	}
	copied := r.copyTools()
	r.addTool(p, &container, r.agent(), copied)
	r.addTool(p, &container, r.ide(), copied)
	p.Spec.Containers = []corev1.Container{container}
	r.place(p)
	if r.cfg.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &r.cfg.RuntimeClass
	}
	return patched(p, r.cfg.Patch)
}

// environment returns the variables of a workspace. Those of the image, which stay unless
// they are replaced, are not known here.
func environment(spec runtime.ContainerSpec) []corev1.EnvVar {
	env := map[string]string{"USER": workspaceUser, "LOGNAME": workspaceUser}
	if spec.TimeZone != "" {
		env["TZ"] = spec.TimeZone
	}
	maps.Copy(env, spec.Env)
	env["HOME"] = runtime.HomeDir
	env[runtime.SecretEnv] = spec.Secret
	var list []corev1.EnvVar
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, corev1.EnvVar{Name: name, Value: env[name]})
	}
	return list
}

// workspaceUser is the name of the user in every workspace.
const workspaceUser = "coder"
