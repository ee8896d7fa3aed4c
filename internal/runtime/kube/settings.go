package kube

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"codehub/internal/base/setting"
)

// Settings are the settings of a Runtime, as codehub serve declares them. Resolve computes
// the values that the runtime uses.
type Settings struct {
	Kubeconfig   string `name:"kubeconfig" env:"CODEHUB_KUBECONFIG" help:"File with the cluster to use and the login there (default: the cluster that codehub runs in)."`
	Namespace    string `name:"kubernetes-namespace" env:"CODEHUB_KUBERNETES_NAMESPACE" default:"codehub-workspaces" help:"Namespace of the workspaces. It must exist."`
	ServerImage  string `name:"server-image" env:"CODEHUB_SERVER_IMAGE" help:"Image of codehub itself, which works on homes in Kubernetes and has the agent of workspaces."`
	StorageClass string `name:"storage-class" env:"CODEHUB_STORAGE_CLASS" help:"Storage class of homes in Kubernetes (default: the cluster's default)."`
	HomeSize     string `name:"home-size" env:"CODEHUB_HOME_SIZE" default:"10Gi" help:"Size of a home's volume in Kubernetes, like 10Gi."`
	NodeSelector string `name:"node-selector" env:"CODEHUB_NODE_SELECTOR" help:"Labels of the nodes for workspaces, like pool=dev,disk=ssd (default: every node)."`
	Tolerations  string `name:"tolerations" env:"CODEHUB_TOLERATIONS" help:"Taints that workspaces tolerate, like dedicated=codehub:NoSchedule, separated by commas, or a JSON list of tolerations as Pods have them."`
	RuntimeClass string `name:"runtime-class" env:"CODEHUB_RUNTIME_CLASS" help:"Runtime class of workspaces (default: the cluster's default)."`
	PullSecrets  string `name:"image-pull-secrets" env:"CODEHUB_IMAGE_PULL_SECRETS" help:"Names of Secrets in the namespace with logins at registries, separated by commas."`
	Ephemeral    string `name:"ephemeral-storage" env:"CODEHUB_EPHEMERAL_STORAGE" default:"10Gi" help:"What a workspace in Kubernetes may write to its node's disk outside of its home, like 10Gi (0 = no limit)."`
	CPUShare     int    `name:"cpu-request" env:"CODEHUB_CPU_REQUEST" min:"0" max:"100" default:"10" help:"What a workspace in Kubernetes requests of the processors that its size permits, in percent."`
	MemoryShare  int    `name:"memory-request" env:"CODEHUB_MEMORY_REQUEST" min:"0" max:"100" default:"25" help:"What a workspace in Kubernetes requests of the memory that its size permits, in percent."`
	PodTemplate  string `name:"pod-template" env:"CODEHUB_POD_TEMPLATE" help:"File with a strategic merge patch, as YAML, of the Pods of workspaces."`
	CopyTools    bool   `name:"copy-tools" env:"CODEHUB_COPY_TOOLS" help:"Copy the agent and the IDE into each Pod, for nodes that cannot mount images."`

	Size          resource.Quantity   `kong:"-"` // of HomeSize
	EphemeralSize resource.Quantity   `kong:"-"` // of Ephemeral; zero: no limit
	Nodes         map[string]string   `kong:"-"` // of NodeSelector
	Tolerated     []corev1.Toleration `kong:"-"` // of Tolerations
	SecretNames   []string            `kong:"-"` // of PullSecrets
	Patch         []byte              `kong:"-"` // of PodTemplate, as JSON; empty: none
}

// Resolve checks the settings and computes the values that follow from them. It returns the
// first invalid one as *setting.Problem.
func (s *Settings) Resolve() error {
	for _, check := range []func() error{s.names, s.size, s.nodes, s.tolerations, s.template} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Settings) names() error {
	if s.ServerImage == "" {
		return setting.Invalid("CODEHUB_SERVER_IMAGE", "it is empty", "give the image that this server runs from")
	}
	if len(validation.IsDNS1123Label(s.Namespace)) > 0 {
		return setting.Invalid("CODEHUB_KUBERNETES_NAMESPACE", fmt.Sprintf("%q is not a name of a namespace", s.Namespace), "give one like codehub-workspaces")
	}
	s.SecretNames = list(s.PullSecrets)
	return nil
}

// list returns the elements of a list that are separated by commas.
func list(text string) []string {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func (s *Settings) size() error {
	size, err := resource.ParseQuantity(s.HomeSize)
	if err != nil || size.Sign() <= 0 {
		return setting.Invalid("CODEHUB_HOME_SIZE", fmt.Sprintf("%q is not a size", s.HomeSize), "give one like 10Gi")
	}
	s.Size = size
	if s.EphemeralSize, err = resource.ParseQuantity(s.Ephemeral); err != nil || s.EphemeralSize.Sign() < 0 {
		return setting.Invalid("CODEHUB_EPHEMERAL_STORAGE", fmt.Sprintf("%q is not a size", s.Ephemeral), "give one like 10Gi, or 0 for no limit")
	}
	return nil
}

func (s *Settings) nodes() error {
	s.Nodes = nil
	for _, label := range list(s.NodeSelector) {
		name, value, ok := strings.Cut(label, "=")
		if !ok || len(validation.IsQualifiedName(name)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return setting.Invalid("CODEHUB_NODE_SELECTOR", fmt.Sprintf("%q is not a label", label), "give labels like pool=dev, separated by commas")
		}
		if s.Nodes == nil {
			s.Nodes = map[string]string{}
		}
		s.Nodes[name] = value
	}
	return nil
}

func (s *Settings) tolerations() error {
	s.Tolerated = nil
	if strings.HasPrefix(strings.TrimSpace(s.Tolerations), "[") {
		if err := yaml.UnmarshalStrict([]byte(s.Tolerations), &s.Tolerated); err != nil {
			return setting.Invalid("CODEHUB_TOLERATIONS", err.Error(), `give tolerations like [{"key": "dedicated", "value": "codehub", "effect": "NoSchedule"}]`)
		}
		return nil
	}
	for _, text := range list(s.Tolerations) {
		taint, effect, _ := strings.Cut(text, ":")
		key, value, equal := strings.Cut(taint, "=")
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
		if equal {
			t.Operator, t.Value = corev1.TolerationOpEqual, value
		}
		switch t.Effect {
		case "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute:
		default:
			return setting.Invalid("CODEHUB_TOLERATIONS", fmt.Sprintf("%q is not an effect of a taint", effect), "give taints like dedicated=codehub:NoSchedule, separated by commas")
		}
		if len(validation.IsQualifiedName(key)) > 0 {
			return setting.Invalid("CODEHUB_TOLERATIONS", fmt.Sprintf("%q is not a taint", text), "give taints like dedicated=codehub:NoSchedule, separated by commas")
		}
		s.Tolerated = append(s.Tolerated, t)
	}
	return nil
}

func (s *Settings) template() error {
	s.Patch = nil
	if s.PodTemplate == "" {
		return nil
	}
	raw, err := os.ReadFile(s.PodTemplate)
	if err == nil {
		s.Patch, err = yaml.YAMLToJSON(raw)
	}
	if err == nil {
		_, err = patched(&corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: containerWorkspace}}, Volumes: []corev1.Volume{claimVolume(homeVolume, "home")},
		}}, s.Patch)
	}
	if err != nil {
		return setting.Invalid("CODEHUB_POD_TEMPLATE", err.Error(), "give a file with a part of a Pod, such as spec: {priorityClassName: low}")
	}
	return nil
}

// Connect returns how to reach the cluster.
func (s *Settings) Connect() (*rest.Config, error) {
	if s.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, setting.Invalid("CODEHUB_KUBECONFIG", "codehub does not run in a cluster: "+err.Error(), "give a file with the cluster and the login there")
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig)
	if err != nil {
		return nil, setting.Invalid("CODEHUB_KUBECONFIG", err.Error(), "give a file with the cluster and the login there")
	}
	return config, nil
}
