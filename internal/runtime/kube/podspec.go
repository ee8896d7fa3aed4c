package kube

import (
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/kube/copytree"
	"codehub/internal/runtime/kube/inside"
	"codehub/internal/workspace"
)

// Where Pods have codehub's programs.
const (
	agentPath  = account.AgentDir + "/" + account.AgentFile
	serverDir  = "/opt/codehub-server" // in a Pod with the image of a workspace
	serverPath = serverDir + "/codehub"
)

// helperLimit is the memory of a task or job, and helperGoLimit what its Go heap aims at, as
// of a storage job under Docker.
const (
	helperLimit   = "512Mi"
	helperGoLimit = "220MiB"
)

// onHome describes a Pod that works on a home.
type onHome struct {
	name, role string
	id         workspace.ID
	claim      string                        // of the operation; empty: none
	home       *corev1.PersistentVolumeClaim // nil: an empty folder that is removed with the Pod
	notes      map[string]string
	image      *chosenImage // whose files it sees; nil: the server's
	command    []string     // of the codehub executable
	caps       []corev1.Capability
	readOnly   bool
	scratch    bool // it has runtime.JobScratchDir
	stdin      bool
	shared     bool // other calls wait for its end, so it does not wait for a node with room
}

// ownerCaps are the capabilities to read and write files of any owner, and to keep what they
// are: owners, modes, set-user-ID bits and capabilities.
var ownerCaps = []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP"}

// pod returns the Pod. It runs as root, since a home has files of any owner, and within the
// Pod security standard "baseline".
func (r *Runtime) pod(o onHome) *corev1.Pod {
	no, yes, root := false, true, int64(0)
	grace := int64(3)
	notes := map[string]string{}
	home, mount := emptyVolume(homeVolume), corev1.VolumeMount{Name: homeVolume, MountPath: runtime.JobHomeDir}
	if o.home != nil {
		notes[noteVolumeClaim], notes[noteVolumeUID] = o.home.Labels[labelClaim], string(o.home.UID)
		home, mount.SubPath, mount.ReadOnly = claimVolume(homeVolume, o.home.Name), homePath, o.readOnly
	}
	for name, value := range o.notes {
		notes[name] = value
	}
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(helperLimit)}
	container := corev1.Container{
		Name: containerHelper, Image: r.cfg.ServerImage, ImagePullPolicy: pullPolicy(r.cfg.ServerImage),
		Command: append([]string{ServerBinary}, o.command...), WorkingDir: "/",
		Env:   []corev1.EnvVar{{Name: "GOMEMLIMIT", Value: helperGoLimit}},
		Stdin: o.stdin, StdinOnce: o.stdin,
		Resources: corev1.ResourceRequirements{Limits: limits, Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("32Mi"), corev1.ResourceCPU: resource.MustParse("10m")}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, RunAsUser: &root, RunAsGroup: &root,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: o.caps},
		},
		VolumeMounts: []corev1.VolumeMount{mount},
	}
	if o.scratch {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: homeVolume, MountPath: runtime.JobScratchDir, SubPath: scratchPath})
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: o.name, Labels: r.labels(o.role, o.id, o.claim), Annotations: notes},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			AutomountServiceAccountToken:  &no,
			EnableServiceLinks:            &no,
			TerminationGracePeriodSeconds: &grace,
			SecurityContext:               &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Volumes:                       []corev1.Volume{home},
		},
	}
	if o.image != nil {
		container.Image, container.ImagePullPolicy, container.Command[0] = o.image.name, o.image.policy, serverPath
		notes[noteImage], notes[noteImageDigest] = o.image.ref, o.image.digest
		r.addTool(p, &container, r.server(), r.copyTools())
	}
	p.Spec.Containers = []corev1.Container{container}
	r.place(p)
	return p
}

// homeVolume is the name of the home among the volumes of a Pod.
const homeVolume = "home"

func claimVolume(name, claim string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}
}

func emptyVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

// tool is a folder with programs of codehub's from an image.
type tool struct {
	volume, image string
	from          string // its path in the image
	to            string // where Pods have it
	copier        string // name of the init container that copies it
	command       []string
}

// agent is the first process of workspaces.
func (r *Runtime) agent() tool {
	return tool{
		volume: "agent", image: r.cfg.ServerImage, from: AgentDir, to: account.AgentDir, copier: containerAgent,
		command: []string{ServerBinary, inside.Command, inside.Install, copyTarget + "/" + account.AgentFile},
	}
}

// server is the program of Pods that work on a home with the image of a workspace.
func (r *Runtime) server() tool {
	return tool{
		volume: "server", image: r.cfg.ServerImage, from: path.Dir(ServerBinary), to: serverDir, copier: containerAgent,
		command: []string{ServerBinary, inside.Command, inside.InstallSelf, copyTarget + "/" + path.Base(serverPath)},
	}
}

// ide is the IDE. In the Pod that copies it, the agent was copied before.
func (r *Runtime) ide() tool {
	return tool{
		volume: "ide", image: r.cfg.IDEImage, from: account.IDEDir, to: account.IDEDir, copier: containerIDE,
		command: []string{agentPath, copytree.Command, account.IDEDir, copyTarget},
	}
}

// copyTarget is where an init container has the volume that it fills. The image has its own
// folder at the place where the workspace has the volume.
const copyTarget = "/codehub-copy"

// addTool mounts a tool in a container: its image, or a copy of it.
func (r *Runtime) addTool(p *corev1.Pod, c *corev1.Container, t tool, copied bool) {
	mount := corev1.VolumeMount{Name: t.volume, MountPath: t.to, ReadOnly: true}
	volume := corev1.Volume{Name: t.volume}
	if !copied {
		mount.SubPath = t.from[1:]
		volume.Image = &corev1.ImageVolumeSource{Reference: t.image, PullPolicy: pullPolicy(t.image)}
	} else {
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{}
		init := corev1.Container{
			Name: t.copier, Image: t.image, ImagePullPolicy: pullPolicy(t.image), Command: t.command, WorkingDir: "/",
			SecurityContext: c.SecurityContext.DeepCopy(),
			VolumeMounts:    append([]corev1.VolumeMount{{Name: t.volume, MountPath: copyTarget}}, c.VolumeMounts...),
		}
		init.VolumeMounts = slices.DeleteFunc(init.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == homeVolume })
		p.Spec.InitContainers = append(p.Spec.InitContainers, init)
	}
	p.Spec.Volumes = append(p.Spec.Volumes, volume)
	c.VolumeMounts = append(c.VolumeMounts, mount)
}
