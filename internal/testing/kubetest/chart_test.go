package kubetest

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"codehub/internal/testing/harness"
)

// base are the values that every release needs.
const base = `
url: https://code.example.com
workspaceURL: https://*.ws.example.com
image: {repository: r.test/server}
ideImage: r.test/ide:1
defaultImage: r.test/workspace:1
archive: {url: s3://bucket}
database: {url: postgres://db/codehub}
`

// variants are values with which the chart is checked. Together they render each optional part
// of the templates; the test notices only a file that none renders.
var variants = map[string]string{
	"required values": "",
	"ingress":         `ingress: {enabled: true, className: nginx, tlsSecret: tls, annotations: {example.com/timeout: "3600"}}`,
	"plain ingress":   `ingress: {enabled: true}`,
	"gateway":         `gateway: {enabled: true, parentRefs: [{name: gateway, namespace: web, sectionName: https}]}`,
	"ServiceMonitor":  `serviceMonitor: {enabled: true, interval: 15s, labels: {release: prometheus}}`,
	"SSH":             `ssh: {enabled: true, service: {type: NodePort, port: 2222, annotations: {example.com/name: ssh}}}`,
	"no options": `{replicas: 1, podDisruptionBudget: false, networkPolicy: {enabled: false}, workspaces: {createNamespace: false, network: {enabled: false}},
		resources: {}, podAnnotations: {}}`,
	"existing Secrets": `{database: {url: "", existingSecret: database}, redis: {existingSecret: redis}, archive: {existingSecret: bucket}, admin: {existingSecret: admin}}`,
	"authorities":      `authorities: {existingSecret: company, key: root.pem}`,
	"network policies": `{ssh: {enabled: true}, networkPolicy: {from: [{namespaceSelector: {matchLabels: {name: ingress}}}], sshFrom: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.1/32]}}], metricsFrom: [{podSelector: {matchLabels: {app: prometheus}}}]},
		workspaces: {network: {deny: [10.0.0.0/8], allow: [{to: [{ipBlock: {cidr: 10.1.2.3/32}}], ports: [{port: 443, protocol: TCP}]}]}}}`,
	"further volumes": `
extraVolumes:
  - {name: ca, configMap: {name: ca, items: [{key: ca.pem, path: company.pem}]}}
  - {name: logins, secret: {secretName: logins, defaultMode: 0440, optional: true}}
  - name: all
    projected: {sources: [{secret: {name: oidc}}, {configMap: {name: providers}}]}
extraVolumeMounts:
  - {name: ca, mountPath: /etc/ssl/certs/company.pem, subPath: company.pem, readOnly: true}
  - {name: logins, mountPath: /etc/codehub-logins}
  - {name: all, mountPath: /etc/codehub-oidc, readOnly: true}
settings: {CODEHUB_REGISTRY_AUTH_FILE: /etc/codehub-logins/config.json, CODEHUB_OIDC_FILE: /etc/codehub-oidc/providers.json}
workspaces: {podTemplate: {spec: {priorityClassName: low}}}`,
	"other names, ports and contexts": `
nameOverride: hub
fullnameOverride: team-codehub
image: {digest: "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}
priorityClassName: high
podLabels: {team: platform}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app.kubernetes.io/instance: codehub}}}]
podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}
securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}}
extraEnv: [{name: HTTPS_PROXY, value: "http://proxy.example.com:3128"}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
envFrom: [{secretRef: {name: proxy}}]
service: {type: LoadBalancer, port: 8443, nodePort: 30080, externalTrafficPolicy: Local, loadBalancerClass: example.com/internal, loadBalancerIP: 192.0.2.7, loadBalancerSourceRanges: [192.0.2.0/24, "2001:db8::/32"]}
ssh: {enabled: true, service: {type: NodePort, nodePort: 30022, externalTrafficPolicy: Local}}
ingress: {enabled: true, tlsSecret: main, workspaceTLSSecret: wildcard}
gateway: {enabled: true, parentRefs: [{name: web}]}
serviceAccount: {create: false, name: hub}
prometheusRule: {enabled: true, labels: {release: prometheus}, rules: [{alert: Slow, expr: codehub_tick_seconds > 5, for: 5m}]}
networkPolicy: {from: [{podSelector: {matchLabels: {app: ingress}}}]}
`,
	"everything": `
image: {tag: "2", pullPolicy: Always}
imagePullSecrets: [{name: registry}]
replicas: 3
resources: {requests: {cpu: 1}, limits: {memory: 2Gi}}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists, effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: zone, operator: In, values: [a]}]}]}}}
podAnnotations: {example.com/round: "2"}
redis: {url: redis://redis:6379/0}
workspaces:
  namespace: homes
  storageClass: fast
  ephemeralStorage: 0
  nodeSelector: {pool: workspaces}
  tolerations: [{key: dedicated, value: codehub, effect: NoSchedule}]
  runtimeClass: gvisor
  imagePullSecrets: [{name: registry}]
  copyTools: true
  podTemplate: {spec: {priorityClassName: low}}
settings: {CODEHUB_MAX_RUNNING_PER_USER: 4, CODEHUB_WORKSPACE_SUDO: true}
service: {type: LoadBalancer, annotations: {example.com/name: web}}
ssh: {enabled: true}
ingress: {enabled: true}
gateway: {enabled: true, parentRefs: [{name: gateway}]}
trustedProxies: [10.244.0.0/16]
serviceAccount: {annotations: {example.com/role: bucket}}
serviceMonitor: {enabled: true}
`,
}

// render renders the chart with the base values and further ones.
func render(t *testing.T, values string) string {
	t.Helper()
	out, err := tryRender(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryRender is render for values that the chart may refuse.
func tryRender(t *testing.T, values string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"template", "codehub", Chart(), "--namespace", "codehub"}
	for name, text := range map[string]string{"0-base": base, "1-more": values} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Helm(t, append(args, "--values", filepath.Join(dir, "0-base"), "--values", filepath.Join(dir, "1-more"))...)
}

// decode finds a resource of rendered manifests and decodes it into v. It reports whether the
// manifests have the resource.
func decode(t *testing.T, manifests, kind, name string, v any) bool {
	t.Helper()
	for _, d := range documents(t, manifests) {
		if d["kind"] != kind || d["metadata"].(map[string]any)["name"] != name {
			continue
		}
		b, err := yaml.Marshal(d)
		if err == nil {
			err = yaml.UnmarshalStrict(b, v)
		}
		if err != nil {
			t.Fatalf("%s %s: %v", kind, name, err)
		}
		return true
	}
	return false
}

// documents parses a YAML file of several resources.
func documents(t *testing.T, manifests string) []map[string]any {
	t.Helper()
	var list []map[string]any
	for _, text := range strings.Split("\n"+manifests, "\n---\n") {
		var d map[string]any
		if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
			t.Fatalf("%v in:\n%s", err, text)
		}
		if d != nil {
			list = append(list, d)
		}
	}
	return list
}

// examples returns the YAML examples of docs/kubernetes.md and docs/servers.md#drain-a-node: values, and Pod templates, which
// begin with spec.
func examples(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, page := range []string{"kubernetes.md", "servers.md"} {
		b, err := os.ReadFile(filepath.Join(Chart(), "..", "..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(b), "```yaml\n")[1:] {
			text, _, _ := strings.Cut(part, "```")
			list = append(list, text)
		}
	}
	return list
}

// exampleValues returns the examples of docs/kubernetes.md as values.
func exampleValues(t *testing.T) []string {
	t.Helper()
	list := examples(t)
	for n, text := range list {
		if strings.HasPrefix(text, "spec:") {
			list[n] = "workspaces:\n  podTemplate:\n    " + strings.ReplaceAll(text, "\n", "\n    ")
		}
	}
	return list
}

// Every resource of the chart is one that Kubernetes, the Gateway API or the operator of
// Prometheus defines, without unknown fields, with each kind of values and with those of the
// documentation.
func TestChartManifestsAreValid(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	k := newKubeconform(t)
	all := maps.Clone(variants)
	for _, text := range examples(t) {
		if !strings.HasPrefix(text, "spec:") {
			continue
		}
		// The chart keeps a Pod template as text, so it is checked on its own.
		pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n" + text
		if found := k.check(pod); len(found) != 1 || found[0].Status != statusValid {
			t.Errorf("a Pod template in docs/kubernetes.md: %+v", found)
		}
	}
	for n, values := range exampleValues(t) {
		all[fmt.Sprintf("example %d of docs/kubernetes.md", n+1)] = values
	}
	if len(all) < len(variants)+3 {
		t.Error("not all examples of docs/kubernetes.md were found")
	}
	rendered := ""
	for name, values := range all {
		manifests := render(t, values)
		rendered += manifests
		want, found := len(documents(t, manifests)), k.check(manifests)
		if want == 0 || len(found) != want {
			t.Errorf("%s: kubeconform checked %d of %d resources", name, len(found), want)
		}
		for _, c := range found {
			if c.Status != statusValid {
				t.Errorf("%s: %s %s %s: %s: %s", name, c.Version, c.Kind, c.Name, c.Status, c.Msg)
			}
		}
	}
	templates, err := filepath.Glob(filepath.Join(Chart(), "templates", "*.yaml"))
	if err != nil || len(templates) == 0 {
		t.Fatalf("%d templates, %v", len(templates), err)
	}
	for _, file := range templates {
		if name := filepath.Base(file); !strings.Contains(rendered, "# Source: codehub/templates/"+name+"\n") {
			t.Errorf("no values render %s", name)
		}
	}
}

// Removing the release keeps the namespace of the workspaces and their NetworkPolicies: Pods of
// workspaces run on without the servers. Argo CD, which has annotations of its own, keeps them, too.
func TestChartKeepsIsolation(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	kept := []string{}
	for _, d := range documents(t, render(t, variants["everything"])) {
		meta := d["metadata"].(map[string]any)
		if annotations, _ := meta["annotations"].(map[string]any); annotations["helm.sh/resource-policy"] == "keep" && annotations["argocd.argoproj.io/sync-options"] == "Prune=false,Delete=false" {
			kept = append(kept, fmt.Sprintf("%s %s", d["kind"], meta["name"]))
		} else if meta["namespace"] == "homes" && d["kind"] == "NetworkPolicy" {
			t.Errorf("helm uninstall removes the NetworkPolicy %s of workspaces", meta["name"])
		}
	}
	slices.Sort(kept)
	want := []string{"Namespace homes", "NetworkPolicy codehub-jobs", "NetworkPolicy codehub-none", "NetworkPolicy codehub-workspaces"}
	if !slices.Equal(kept, want) {
		t.Errorf("the chart keeps %q, not %q", kept, want)
	}
}

// The metadata services of clouds are denied with any list of denied networks, also an empty one.
func TestChartDeniesMetadataServices(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	for _, deny := range []string{"", "{workspaces: {network: {deny: []}}}", "{workspaces: {network: {deny: [169.254.0.0/16, 203.0.113.0/24]}}}"} {
		var policy networkingv1.NetworkPolicy
		if !decode(t, render(t, deny), "NetworkPolicy", "codehub-workspaces", &policy) {
			t.Fatal("no policy")
		}
		var except []netip.Prefix
		for _, rule := range policy.Spec.Egress {
			for _, to := range rule.To {
				if to.IPBlock == nil {
					continue
				}
				for _, text := range to.IPBlock.Except {
					except = append(except, netip.MustParsePrefix(text))
				}
			}
		}
		for _, address := range []string{"169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"} {
			within := 0
			for _, p := range except {
				if p.Contains(netip.MustParseAddr(address)) {
					within++
				}
			}
			if within != 1 {
				t.Errorf("with %q: %s is in %d of %v", deny, address, within, except)
			}
		}
	}
}

// Peers that may send requests and peers that may use SSH, which has a Service of its own, are
// separate: requests come from an ingress controller, SSH from the users' computers.
func TestChartLimitsWhoReachesServers(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	const from, sshFrom = "from: [{podSelector: {matchLabels: {app: ingress}}}]", "sshFrom: [{ipBlock: {cidr: 192.0.2.0/24}}]"
	for values, want := range map[string]string{
		"": "http from all, metrics from namespaces",
		"networkPolicy: {" + from + ", " + sshFrom + "}":                         "http from app=ingress and test, metrics from namespaces",
		"ssh: {enabled: true}":                                                   "http from all, ssh from all, metrics from namespaces",
		"{ssh: {enabled: true}, networkPolicy: {" + from + "}}":                  "http from app=ingress and test, ssh from all, metrics from namespaces",
		"{ssh: {enabled: true}, networkPolicy: {" + sshFrom + "}}":               "http from all, ssh from 192.0.2.0/24, metrics from namespaces",
		"{ssh: {enabled: true}, networkPolicy: {" + from + ", " + sshFrom + "}}": "http from app=ingress and test, ssh from 192.0.2.0/24, metrics from namespaces",
	} {
		var policy networkingv1.NetworkPolicy
		if !decode(t, render(t, values), "NetworkPolicy", "codehub", &policy) {
			t.Fatalf("%s: no NetworkPolicy of the servers", values)
		}
		var rules []string
		for _, rule := range policy.Spec.Ingress {
			var ports, peers []string
			for _, p := range rule.Ports {
				ports = append(ports, p.Port.String())
			}
			for _, p := range rule.From {
				switch {
				case p.IPBlock != nil:
					peers = append(peers, p.IPBlock.CIDR)
				case p.PodSelector != nil && p.PodSelector.MatchLabels["app.kubernetes.io/name"] == "codehub-test":
					peers = append(peers, "test")
				case p.PodSelector != nil:
					peers = append(peers, "app="+p.PodSelector.MatchLabels["app"])
				default:
					peers = append(peers, "namespaces")
				}
			}
			if peers == nil {
				peers = []string{"all"}
			}
			rules = append(rules, strings.Join(ports, " and ")+" from "+strings.Join(peers, " and "))
		}
		if got := strings.Join(rules, ", "); got != want {
			t.Errorf("%s: %s, not %s", values, got, want)
		}
	}
}

// extraVolumes and extraVolumeMounts are in the servers' Pods, in addition to the chart's own
// volumes.
func TestChartMountsExtraVolumes(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	var plain, more appsv1.Deployment
	withTemplate := "workspaces: {podTemplate: {spec: {priorityClassName: low}}}"
	if !decode(t, render(t, withTemplate), "Deployment", "codehub", &plain) || !decode(t, render(t, variants["further volumes"]), "Deployment", "codehub", &more) {
		t.Fatal("no Deployment")
	}
	mode := int32(0o440)
	volumes, own := more.Spec.Template.Spec.Volumes, plain.Spec.Template.Spec.Volumes
	if !reflect.DeepEqual(volumes[:len(own)], own) || len(volumes) != len(own)+3 || volumes[len(own)].ConfigMap.Items[0].Path != "company.pem" ||
		!reflect.DeepEqual(volumes[len(own)+1].Secret, &corev1.SecretVolumeSource{SecretName: "logins", DefaultMode: &mode, Optional: new(true)}) ||
		len(volumes[len(own)+2].Projected.Sources) != 2 {
		t.Errorf("volumes: %+v", volumes)
	}
	mounts := more.Spec.Template.Spec.Containers[0].VolumeMounts
	want := append(plain.Spec.Template.Spec.Containers[0].VolumeMounts,
		corev1.VolumeMount{Name: "ca", MountPath: "/etc/ssl/certs/company.pem", SubPath: "company.pem", ReadOnly: true},
		corev1.VolumeMount{Name: "logins", MountPath: "/etc/codehub-logins"},
		corev1.VolumeMount{Name: "all", MountPath: "/etc/codehub-oidc", ReadOnly: true})
	if !reflect.DeepEqual(mounts, want) {
		t.Errorf("mounts: %+v, not %+v", mounts, want)
	}
}

// The servers have the file of a company's authorities, from a ConfigMap or a Secret.
func TestChartMountsAuthorities(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	for values, want := range map[string]corev1.VolumeSource{
		"authorities: {existingConfigMap: company}":             {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "company"}}},
		"authorities: {existingSecret: company, key: root.pem}": {Secret: &corev1.SecretVolumeSource{SecretName: "company", DefaultMode: new(int32(0o440))}},
	} {
		var d appsv1.Deployment
		var settings corev1.ConfigMap
		if out := render(t, values); !decode(t, out, "Deployment", "codehub", &d) || !decode(t, out, "ConfigMap", "codehub", &settings) {
			t.Fatal("no Deployment, or no settings")
		}
		volumes, mounts := d.Spec.Template.Spec.Volumes, d.Spec.Template.Spec.Containers[0].VolumeMounts
		at := "/etc/codehub-authorities/ca.crt"
		if want.Secret != nil {
			at = "/etc/codehub-authorities/root.pem"
		}
		if !slices.ContainsFunc(volumes, func(v corev1.Volume) bool { return v.Name == "authorities" && reflect.DeepEqual(v.VolumeSource, want) }) ||
			!slices.Contains(mounts, corev1.VolumeMount{Name: "authorities", MountPath: "/etc/codehub-authorities", ReadOnly: true}) || settings.Data["CODEHUB_CA_FILE"] != at {
			t.Errorf("%s: %+v, %+v, %q", values, volumes, mounts, settings.Data["CODEHUB_CA_FILE"])
		}
	}
	if _, err := tryRender(t, "authorities: {existingConfigMap: a, existingSecret: b}"); err == nil || !strings.Contains(err.Error(), "give one of them") {
		t.Errorf("a ConfigMap and a Secret: %v", err)
	}
}

// The schema refuses volumes and mounts that are incomplete or replace those of the chart.
func TestChartRefusesWrongVolumes(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	for _, wrong := range []string{
		"extraVolumes: {name: x}", "extraVolumes: [x]", "extraVolumes: [{secret: {secretName: x}}]", "extraVolumes: [{name: x}]", "extraVolumes: [{name: A_b, emptyDir: {}}]",
		"extraVolumes: [{name: data, emptyDir: {}}]", "extraVolumes: [{name: tmp, emptyDir: {}}]", "extraVolumes: [{name: pod, emptyDir: {}}]",
		"extraVolumes: [{name: x, emptyDir: {}, secret: {secretName: x}}]",
		"extraVolumeMounts: [{name: x}]", "extraVolumeMounts: [{mountPath: /x}]", "extraVolumeMounts: [{name: x, mountPath: x}]", "extraVolumeMounts: [{name: x, mountPath: /}]",
		"extraVolumeMounts: [{name: x, mountPath: /tmp}]", "extraVolumeMounts: [{name: x, mountPath: /var/lib/codehub/}]", "extraVolumeMounts: [{name: x, mountPath: /etc/codehub}]",
		"extraVolumeMounts: [{name: x, mountPath: /x, subpath: y}]", "extraVolumeMounts: [{name: x, mountPath: /x, readOnly: yes please}]",
	} {
		name, _, _ := strings.Cut(wrong, ":")
		if _, err := tryRender(t, wrong); err == nil || !strings.Contains(err.Error(), "'/"+name) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// Settings that name a file name one that the Pod mounts, in each variant and in each example of
// docs/kubernetes.md.
func TestChartExamplesMountFilesOfSettings(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	found := 0
	for _, values := range append(slices.Collect(maps.Values(variants)), exampleValues(t)...) {
		manifests := render(t, values)
		var settings corev1.ConfigMap
		var servers appsv1.Deployment
		name := "codehub"
		if strings.Contains(values, "fullnameOverride: team-codehub") {
			name = "team-codehub"
		}
		if !decode(t, manifests, "ConfigMap", name, &settings) || !decode(t, manifests, "Deployment", name, &servers) {
			t.Fatal("no ConfigMap or Deployment")
		}
		for name, file := range settings.Data {
			if !strings.HasSuffix(name, "_FILE") && name != "CODEHUB_POD_TEMPLATE" {
				continue
			}
			found++
			if !slices.ContainsFunc(servers.Spec.Template.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
				return strings.HasPrefix(file, m.MountPath+"/")
			}) {
				t.Errorf("no volume has the file %s of %s", file, name)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d settings name files", found)
	}
}

// The servers get each number that the schema accepts as it was written, not as 1.2096e+06, which
// they refuse.
func TestChartKeepsNumbers(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	var settings corev1.ConfigMap
	decode(t, render(t, `
settings: {CODEHUB_TTL_STANDBY_SECONDS: 1209600, CODEHUB_MAX_RUNNING_GLOBAL: 1000000, CODEHUB_MAX_BYTES_PER_USER: 9007199254740991, CODEHUB_WORKSPACE_CPUS: 0.5, CODEHUB_WORKSPACE_SUDO: true, CODEHUB_MIN_FREE: "012", CODEHUB_EGRESS_DENY: "<&>", CODEHUB_MAX_RUNNING_PER_USER: 0}
workspaces: {ephemeralStorage: 21474836480}`), "ConfigMap", "codehub", &settings)
	for name, value := range map[string]string{
		"TTL_STANDBY_SECONDS": "1209600", "MAX_RUNNING_GLOBAL": "1000000", "MAX_BYTES_PER_USER": "9007199254740991", "WORKSPACE_CPUS": "0.5", "WORKSPACE_SUDO": "true", "MIN_FREE": "012", "EGRESS_DENY": "<&>", "MAX_RUNNING_PER_USER": "0",
	} {
		if got := settings.Data["CODEHUB_"+name]; got != value {
			t.Errorf("CODEHUB_%s is %s, not %s", name, got, value)
		}
	}
	if got := settings.Data["CODEHUB_EPHEMERAL_STORAGE"]; got != "21474836480" {
		t.Errorf("CODEHUB_EPHEMERAL_STORAGE is %s", got)
	}
	for _, number := range []string{"-1", "1e300"} {
		if _, err := tryRender(t, "settings: {CODEHUB_TTL_STANDBY_SECONDS: "+number+"}"); err == nil || !strings.Contains(err.Error(), "CODEHUB_TTL_STANDBY_SECONDS") {
			t.Errorf("%s: %v", number, err)
		}
	}
}

// The schema refuses what Kubernetes or the servers refuse, with the place of each.
func TestChartRefusesNonsense(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	_, err := tryRender(t, `
imagePullSecrets: [registry]
resources: {request: {cpu: 1}}
tolerations: ["dedicated=codehub:NoSchedule", {key: a, effect: Never}]
affinity: {nodeAffinty: {}, podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: high}]}}
workspaces:
  homeSize: 10g
  ephemeralStorage: much
  cpus: two
  memory: 4g
  requests: {cpu: 200m, memory: 101%}
  tolerations: ["dedicated=codehub:NoSchedule"]
  imagePullSecrets: [registry]
  network:
    deny: [10.0.0.0/33, 300.0.0.0/8]
    allow: [{from: []}]
    dns: {podSelector: {labels: {}}}
settings: {CODEHUB_LISTN: x}
gateway: {enabled: true, parentRefs: [{gateway: web}]}
trustedProxies: [proxy.example.com, 10.0.0.0/40]
networkPolicy: {from: [{}], sshFrom: [{ipBlock: {cidr: nowhere}}], metricsFrom: [{namespace: x}]}
`)
	for _, place := range []string{
		"/imagePullSecrets/0", "/resources", "/tolerations/0", "/tolerations/1/effect", "nodeAffinty", "/weight", "/workspaces/homeSize", "/workspaces/ephemeralStorage", "/workspaces/cpus",
		"/workspaces/memory", "/workspaces/requests/cpu", "/workspaces/requests/memory", "/workspaces/tolerations/0", "/workspaces/imagePullSecrets/0", "/workspaces/network/deny/0", "/workspaces/network/deny/1",
		"/workspaces/network/allow/0", "/workspaces/network/dns/podSelector", "'CODEHUB_LISTN'", "/gateway/parentRefs/0", "/trustedProxies/0", "/trustedProxies/1",
		"/networkPolicy/from/0", "/networkPolicy/sshFrom/0/ipBlock/cidr", "/networkPolicy/metricsFrom/0",
	} {
		if err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s is not refused: %v", place, err)
		}
	}
	for values, place := range map[string]string{"workspaces: {memory: 4}": "64Mi", "gateway: {enabled: true}": "/gateway/parentRefs"} {
		if _, err := tryRender(t, values); err == nil || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v", values, err)
		}
	}
}

// Values have Kubernetes' own units and shapes, and the servers get what they mean.
func TestChartTakesKubernetesShapes(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	var settings corev1.ConfigMap
	manifests := render(t, `
imagePullSecrets: [{name: registry}]
resources: {requests: {cpu: 1, memory: 256Mi}, limits: {memory: 1.5Gi, ephemeral-storage: 4294967296}}
workspaces:
  homeSize: 10737418240
  ephemeralStorage: 1.5Gi
  cpus: 2
  memory: 4G
  requests: {cpu: 0%, memory: 100%}
  tolerations: [{operator: Exists}, {key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 60}]
  imagePullSecrets: [{name: a}, {name: b}]
trustedProxies: [10.0.0.1, 10.0.0.0/8, "2001:db8::/32", "::1"]
gateway: {enabled: true, parentRefs: [{name: web, namespace: web, sectionName: https, port: 443}]}
networkPolicy: {from: [{ipBlock: {cidr: "2001:db8::/32"}}]}
`)
	decode(t, manifests, "ConfigMap", "codehub", &settings)
	for name, want := range map[string]string{
		"HOME_SIZE": "10737418240", "EPHEMERAL_STORAGE": "1.5Gi", "WORKSPACE_CPUS": "2", "WORKSPACE_MEMORY": "4000000000", "CPU_REQUEST": "0", "MEMORY_REQUEST": "100", "IMAGE_PULL_SECRETS": "a,b",
		"TOLERATIONS":     `[{"operator":"Exists"},{"effect":"NoExecute","key":"a","operator":"Exists","tolerationSeconds":60}]`,
		"TRUSTED_PROXIES": "10.0.0.1,10.0.0.0/8,2001:db8::/32,::1",
	} {
		if got := settings.Data["CODEHUB_"+name]; got != want {
			t.Errorf("CODEHUB_%s is %s, not %s", name, got, want)
		}
	}
	var role rbacv1.Role
	if !decode(t, manifests, "Role", "codehub", &role) || !slices.Equal(role.Rules[len(role.Rules)-1].ResourceNames, []string{"a", "b"}) {
		t.Errorf("the servers may read the Secrets %v", role.Rules)
	}
	for values, want := range map[string]string{
		"workspaces: {cpus: 500m, memory: 1.5Gi}": "0.5 1610612736", "workspaces: {cpus: 0.25, memory: 0}": "0.25 0", `workspaces: {cpus: "4", memory: 8589934592}`: "4 8589934592",
	} {
		decode(t, render(t, values), "ConfigMap", "codehub", &settings)
		if got := settings.Data["CODEHUB_WORKSPACE_CPUS"] + " " + settings.Data["CODEHUB_WORKSPACE_MEMORY"]; got != want {
			t.Errorf("%s: %s, not %s", values, got, want)
		}
	}
}

// Values that other charts have reach the objects that they are for.
func TestChartOptions(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	manifests := render(t, variants["other names, ports and contexts"])
	var servers appsv1.Deployment
	var web, ssh corev1.Service
	var ingress networkingv1.Ingress
	var policy networkingv1.NetworkPolicy
	var test corev1.Pod
	for kind, one := range map[string]struct {
		name string
		v    any
	}{
		"Deployment": {"team-codehub", &servers}, "Service": {"team-codehub", &web}, "Ingress": {"team-codehub", &ingress}, "NetworkPolicy": {"team-codehub", &policy}, "Pod": {"team-codehub-test", &test},
	} {
		if !decode(t, manifests, kind, one.name, one.v) {
			t.Fatalf("no %s %s", kind, one.name)
		}
	}
	if !decode(t, manifests, "Service", "team-codehub-ssh", &ssh) || decode(t, manifests, "ServiceAccount", "team-codehub", new(corev1.ServiceAccount)) {
		t.Error("no Service of SSH, or a ServiceAccount")
	}
	pod := servers.Spec.Template.Spec
	c := pod.Containers[0]
	if path := c.ReadinessProbe.HTTPGet.Path; path != "/healthz" { // /readyz fails on all servers while the database is away
		t.Errorf("servers are ready by %s", path)
	}
	if pod.ServiceAccountName != "hub" || pod.PriorityClassName != "high" || len(pod.TopologySpreadConstraints) != 1 || servers.Spec.Template.Labels["team"] != "platform" {
		t.Errorf("the Pods of the servers: %+v", pod)
	}
	if pod.SecurityContext.RunAsUser != nil || pod.SecurityContext.FSGroup != nil || !*pod.SecurityContext.RunAsNonRoot || len(c.SecurityContext.Capabilities.Add) != 1 || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("security contexts: %+v, %+v", pod.SecurityContext, c.SecurityContext)
	}
	if !strings.HasPrefix(c.Image, "r.test/server@sha256:") || test.Spec.Containers[0].Image != c.Image || c.EnvFrom[len(c.EnvFrom)-1].SecretRef.Name != "proxy" ||
		!slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "HTTPS_PROXY" && e.Value == "http://proxy.example.com:3128"
		}) {
		t.Errorf("the container of the servers: %+v", c)
	}
	if p := web.Spec.Ports[0]; p.Port != 8443 || p.NodePort != 30080 || web.Spec.LoadBalancerIP != "192.0.2.7" || *web.Spec.LoadBalancerClass != "example.com/internal" || len(web.Spec.LoadBalancerSourceRanges) != 2 ||
		web.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || ssh.Spec.Ports[0].NodePort != 30022 || !maps.Equal(web.Spec.Selector, servers.Spec.Selector.MatchLabels) {
		t.Errorf("Services: %+v, %+v", web.Spec, ssh.Spec)
	}
	want := []networkingv1.IngressTLS{{SecretName: "main", Hosts: []string{"code.example.com"}}, {SecretName: "wildcard", Hosts: []string{"*.ws.example.com"}}}
	if !reflect.DeepEqual(ingress.Spec.TLS, want) {
		t.Errorf("certificates: %+v", ingress.Spec.TLS)
	}
	// The Pod of helm test may connect where not all may, and gets no requests.
	if from := policy.Spec.Ingress[0].From; len(from) != 2 || !maps.Equal(from[1].PodSelector.MatchLabels, test.Labels) || test.Labels["app.kubernetes.io/name"] == web.Spec.Selector["app.kubernetes.io/name"] {
		t.Errorf("who may send requests: %+v, with the labels %v of the Pod of helm test", from, test.Labels)
	}
}

// notes returns what an install of the chart prints.
func notes(t *testing.T, values string) string {
	t.Helper()
	chart := filepath.Join(t.TempDir(), "codehub")
	if err := os.CopyFS(chart, os.DirFS(Chart())); err != nil {
		t.Fatal(err)
	}
	// Without a cluster helm prints no notes.
	text := `notes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}`
	if err := os.WriteFile(filepath.Join(chart, "templates", "notes.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(base+values), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := Helm(t, "template", "codehub", chart, "--namespace", "codehub", "--values", file, "--show-only", "templates/notes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return documents(t, out)[0]["notes"].(string)
}

// The chart renders the same each time, as GitOps needs, so it makes no password. Without a
// Secret of the administrator, the notes lead to the setup code, which is right also if the
// database was used before.
func TestChartMakesNoPassword(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	for values, want := range map[string]struct{ secret, key, notes string }{
		"":                              {notes: "/setup?code="},
		"admin: {existingSecret: boss}": {"boss", "password", "get secret boss --output jsonpath='{.data.password}'"},
		"admin: {existingSecret: boss, key: a.b}": {"boss", "a.b", `get secret boss --output jsonpath='{.data.a\.b}'`},
	} {
		manifests := render(t, values)
		if manifests != render(t, values) {
			t.Errorf("%q renders differently each time", values)
		}
		var servers appsv1.Deployment
		if !decode(t, manifests, "Deployment", "codehub", &servers) {
			t.Fatal("no Deployment")
		}
		var secret, key string
		for _, e := range servers.Spec.Template.Spec.Containers[0].Env {
			if e.Name == "CODEHUB_ADMIN_PASSWORD" {
				secret, key = e.ValueFrom.SecretKeyRef.Name, e.ValueFrom.SecretKeyRef.Key
			}
		}
		if secret != want.secret || key != want.key {
			t.Errorf("%q: the administrator's password is %s of the Secret %q", values, key, secret)
		}
		if printed := notes(t, values); !strings.Contains(printed, want.notes) {
			t.Errorf("%q: the notes do not have %q:\n%s", values, want.notes, printed)
		}
	}
}

// kubeconform refuses an unknown field in each resource of the chart.
func TestKubeconformRefusesWrongManifests(t *testing.T) {
	harness.Verify(t) // kube.sh builds the tools, which takes long
	t.Parallel()
	k := newKubeconform(t)
	var stream strings.Builder
	wrong := 0
	for _, d := range documents(t, render(t, variants["everything"])) {
		places := []map[string]any{d, d["metadata"].(map[string]any)}
		if spec, ok := d["spec"].(map[string]any); ok {
			places = append(places, spec)
		}
		for _, fields := range places {
			fields["unknownField"] = "x"
			b, err := yaml.Marshal(d)
			delete(fields, "unknownField")
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&stream, "---\n%s", b)
			wrong++
		}
	}
	found := k.check(stream.String())
	if wrong < 40 || len(found) != wrong {
		t.Errorf("kubeconform checked %d of %d resources", len(found), wrong)
	}
	for _, c := range found {
		if c.Status != "statusInvalid" || !strings.Contains(c.Msg, "unknownField") {
			t.Errorf("an unknown field in %s %s: %s: %s", c.Kind, c.Name, c.Status, c.Msg)
		}
	}
}
