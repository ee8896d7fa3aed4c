package kube

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/base/trust"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/kube/enter"
)

// workspacePod returns the Pod of a workspace. It is within the Pod security standard
// "restricted", or with sudo within "baseline". It has no fsGroup: the cluster would change the group and the modes of the
// home's files, and OwnHome has given them to the workspace's user already. The error is that
// of the administrator's Pod template.
func (r *Runtime) workspacePod(spec runtime.ContainerSpec, home *corev1.PersistentVolumeClaim, image chosenImage, f facts) (*corev1.Pod, error) {
	no, yes, uid := false, true, int64(spec.UID)
	// Without a request, the limit is requested.
	limits, requests := corev1.ResourceList{}, corev1.ResourceList{}
	if cpus := spec.Size.NanoCPUs / 1e6; cpus > 0 {
		limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpus, resource.DecimalSI)
		requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpus*int64(r.cfg.CPUShare)/100, resource.DecimalSI)
	}
	if memory := spec.Size.Memory; memory > 0 {
		limits[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
		share := int64(r.cfg.MemoryShare)
		requests[corev1.ResourceMemory] = *resource.NewQuantity(memory/100*share+memory%100*share/100, resource.BinarySI)
	}
	if size := r.cfg.EphemeralSize; size.Sign() > 0 {
		limits[corev1.ResourceEphemeralStorage] = size
		requests[corev1.ResourceEphemeralStorage] = resource.MustParse("0") // otherwise the limit counts
	}
	container := corev1.Container{
		Name: containerWorkspace, Image: image.name, ImagePullPolicy: image.policy,
		Command:    []string{agentPath, runtime.AgentCommand, "--", account.IDEStart},
		WorkingDir: "/", // the user may not enter the image's
		Env:        r.environment(spec, f),
		Resources:  corev1.ResourceRequirements{Limits: limits, Requests: requests},
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
				noteImage: spec.Image, noteImageDigest: image.digest, noteImageNote: image.note, noteGeneration: strconv.Itoa(spec.Choice.Generation), noteEnvironment: spec.EnvDigest, noteSize: spec.Size.Name,
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
	if !f.Included {
		r.addTool(p, &container, r.ide(), copied)
	} else {
		container.Command, container.WorkingDir = container.Command[:3:3], ""
		for _, word := range f.Command {
			container.Command = append(container.Command, literal(word))
		}
	}
	if len(f.Processors) > 0 {
		p.Spec.Affinity = onProcessors(f.Processors)
	}
	addUser(p, &container, f.Files(spec.UID))
	if r.cfg.Sudo {
		allowRoot(p, &container, spec.UID)
	}
	r.addAuthorities(p, &container)
	if !f.Tmp {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: tmpVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: tmpVolume, MountPath: "/tmp"})
	}
	p.Spec.Containers = []corev1.Container{container}
	r.place(p)
	if r.cfg.RuntimeClass != "" {
		p.Spec.RuntimeClassName = &r.cfg.RuntimeClass
	}
	return patched(p, r.cfg.Patch)
}

const (
	tmpVolume  = "tmp"
	userVolume = "user"
)

// onProcessors keeps a Pod off nodes whose processor its image is not for.
func onProcessors(names []string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: names}}}},
	}}}
}

// onNode keeps a Pod off all nodes but one. A Pod with a gate cannot name its node.
func onNode(name string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}},
	}}}
}

// addUser mounts the lists of users and groups, in which the workspace's user has a name. They
// are annotations of the Pod itself, so that a start needs no further object.
func addUser(p *corev1.Pod, c *corev1.Container, files map[string]string) {
	notes := map[string]string{"passwd": notePasswd, "group": noteGroup}
	var items []corev1.DownwardAPIVolumeFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		p.Annotations[notes[name]] = files[name]
		items = append(items, corev1.DownwardAPIVolumeFile{
			Path: name, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + notes[name] + "']"},
		})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: userVolume, MountPath: "/etc/" + name, SubPath: name, ReadOnly: true})
	}
	if len(items) > 0 {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: userVolume, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: items}}})
	}
}

// userDir is where a workspace with sudo has the lists, which root changes in /etc.
const userDir = "/opt/codehub-user"

// allowRoot lets the user become root in a user namespace of the Pod: a uid of the node that
// nothing else has. The first process is root, so that it can put the lists into /etc.
func allowRoot(p *corev1.Pod, c *corev1.Container, uid uint32) {
	no, yes, root := false, true, int64(0)
	p.Spec.HostUsers = &no
	// With raw sockets a workspace could forge its neighbours' addresses.
	c.SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: &yes, RunAsUser: &root, RunAsGroup: &root, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_RAW"}},
	}
	c.Command = append([]string{agentPath, enter.Command, strconv.FormatUint(uint64(uid), 10), userDir}, c.Command...)
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == userVolume })
	if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == userVolume }) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: userVolume, MountPath: userDir, ReadOnly: true})
	}
}

const (
	trustVolume   = "trust"
	companyVolume = "company"
	companyDir    = "/opt/codehub-company"
	companyFile   = "company.crt"
)

// addAuthorities mounts the files with the authorities that the workspace trusts, also in the places
// of the image's own. An init container with the image makes them, since nothing else sees the
// image's own. With sudo there are no mounts in those places: enter puts the list there, so that
// root can update it.
func (r *Runtime) addAuthorities(p *corev1.Pod, c *corev1.Container) {
	if len(r.cfg.Authorities) == 0 {
		return
	}
	p.Annotations[noteAuthorities] = string(r.cfg.Authorities)
	p.Spec.Volumes = append(p.Spec.Volumes,
		corev1.Volume{Name: trustVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.Volume{Name: companyVolume, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{
			Path: companyFile, FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + noteAuthorities + "']"},
		}}}}})
	init := corev1.Container{
		Name: containerTrust, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, WorkingDir: "/",
		Command:   []string{agentPath, trust.Command, companyDir + "/" + companyFile, trust.Dir},
		Resources: *c.Resources.DeepCopy(), SecurityContext: c.SecurityContext.DeepCopy(),
		VolumeMounts: []corev1.VolumeMount{{Name: trustVolume, MountPath: trust.Dir}, {Name: companyVolume, MountPath: companyDir, ReadOnly: true}},
	}
	for _, m := range c.VolumeMounts {
		if m.MountPath == account.AgentDir {
			init.VolumeMounts = append(init.VolumeMounts, m)
		}
	}
	p.Spec.InitContainers = append(p.Spec.InitContainers, init)
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: trustVolume, MountPath: trust.Dir, ReadOnly: true})
	if r.cfg.Sudo {
		return
	}
	for _, place := range trust.Bundles {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: trustVolume, MountPath: place, SubPath: path.Base(trust.BundlePath), ReadOnly: true})
	}
}

// environment returns the variables of a workspace in addition to those of its image.
func (r *Runtime) environment(spec runtime.ContainerSpec, f facts) []corev1.EnvVar {
	own := account.Env(f.Env, f.Shell)
	if f.Included {
		own = map[string]string{"HOME": runtime.HomeDir} // that of its own user may not be accessible
	}
	if len(r.cfg.Authorities) > 0 {
		maps.Copy(own, trust.Env(f.Env))
	}
	defaults := r.cfg.Variables
	if r.cfg.PortURI != nil {
		if uri := r.cfg.PortURI(spec.Workspace); uri != "" {
			defaults = append(slices.Clone(defaults), account.PortURIEnv+"="+uri)
		}
	}
	env := account.Environment(spec, own, account.SetsZone(f.Env), defaults)
	var list []corev1.EnvVar
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, corev1.EnvVar{Name: name, Value: literal(env[name])})
	}
	return list
}

// literal returns the text that Kubernetes makes this value of: in variables and commands
// $(NAME) stands for a variable, and $$ for one $.
func literal(value string) string { return strings.ReplaceAll(value, "$", "$$") }
