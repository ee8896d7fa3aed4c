package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"codehub/internal/base/trust"
	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/workspace"
)

// An image that brings its IDE runs its own program in its own folder, and only on nodes that
// it is for. The user's lists are within the Pod.
func TestPodFollowsImage(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1"}, IDEImage: "codehub/ide:1", Variables: []string{"EXTENSIONS_GALLERY={}"}}}
	spec := runtime.ContainerSpec{Workspace: "w", UID: 1500000, Claim: "start-1", Image: "lab:1", Secret: "s"}
	f := facts{Accounts: account.Accounts{Passwd: "root:x:0:0::/root:/bin/sh\n", Shell: "/bin/sh", Tmp: true}, Command: []string{"/lab", "serve"}, Included: true, Processors: []string{"arm64"}}
	image := byDigest("lab:1", "sha256:"+strings.Repeat("1", 64))
	p, err := r.workspacePod(spec, r.newClaim("ws-home", nil), image, f)
	check(t, err)
	c := p.Spec.Containers[0]
	if !slices.Equal(c.Command, []string{agentPath, "agent", "--", "/lab", "serve"}) || c.WorkingDir != "" || c.Image != image.name {
		t.Errorf("container = %+v", c)
	}
	if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "ide" || v.Name == tmpVolume }) {
		t.Errorf("volumes = %+v", p.Spec.Volumes)
	}
	if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "EXTENSIONS_GALLERY" && e.Value == "{}" }) {
		t.Errorf("variables = %+v", c.Env)
	}
	if got := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Values; !slices.Equal(got, f.Processors) {
		t.Errorf("processors = %q", got)
	}
	if !strings.HasPrefix(p.Annotations[notePasswd], "coder:x:1500000:1500000:coder:/home/coder:/bin/sh\n") || p.Annotations[noteGroup] != "coder:x:1500000:\n" {
		t.Errorf("annotations = %q", p.Annotations)
	}
	f.Included, f.Tmp = false, false
	if p, err = r.workspacePod(spec, r.newClaim("ws-home", nil), image, f); err != nil {
		t.Fatal(err)
	}
	if c := p.Spec.Containers[0]; c.Command[3] != account.IDEStart || c.WorkingDir != "/" || !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/tmp" }) {
		t.Errorf("container = %+v", c)
	}
}

// A Pod has the authorities of a company, and an init container with its image that adds the
// image's own. Root of a workspace with sudo can update the list, as no mount is in its place.
func TestPodTrustsCompany(t *testing.T) {
	t.Parallel()
	r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1"}, IDEImage: "codehub/ide:1", Authorities: []byte("certificates")}}
	pod := func(sudo, copied bool) (*corev1.Pod, corev1.Container) {
		r.cfg.Sudo, r.cfg.CopyTools = sudo, copied
		p, err := r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 30000}, r.newClaim("ws-home", nil), chosenImage{name: "lab:1"}, facts{Env: []string{"PIP_CERT=/own"}})
		check(t, err)
		return p, p.Spec.Containers[0]
	}
	mounts := func(c corev1.Container) (at []string) {
		for _, m := range c.VolumeMounts {
			if m.Name == trustVolume {
				at = append(at, m.MountPath)
			}
		}
		return at
	}
	for _, sudo := range []bool{false, true} {
		for _, copied := range []bool{false, true} {
			p, c := pod(sudo, copied)
			init := p.Spec.InitContainers[len(p.Spec.InitContainers)-1] // after one that copies the agent
			if init.Image != "lab:1" || !slices.Equal(init.Command, []string{agentPath, trust.Command, "/opt/codehub-company/company.crt", trust.Dir}) ||
				!reflect.DeepEqual(init.SecurityContext, c.SecurityContext) || !slices.ContainsFunc(init.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == account.AgentDir }) ||
				slices.ContainsFunc(init.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == homeVolume }) {
				t.Errorf("the init container is %+v", init)
			}
			want := []string{trust.Dir}
			if !sudo {
				want = append(want, trust.Bundles...)
			}
			if got := mounts(c); !slices.Equal(got, want) {
				t.Errorf("sudo %v: mounted at %q", sudo, got)
			}
			if p.Annotations[noteAuthorities] != "certificates" {
				t.Errorf("annotations = %q", p.Annotations)
			}
			has := func(name string) bool {
				return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name })
			}
			if has("PIP_CERT") || !has("SSL_CERT_FILE") {
				t.Errorf("variables = %+v", c.Env)
			}
		}
	}
	r.cfg.Authorities = nil
	if p, c := pod(false, false); len(p.Spec.InitContainers) > 0 || mounts(c) != nil {
		t.Errorf("without authorities: %+v", p.Spec)
	}
}

// Facts that the cluster does not keep are known all the same, and starts go on.
func TestFactsThatAreNotRecorded(t *testing.T) {
	t.Parallel()
	writes := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			writes++
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(api.Close)
	r, err := New(&rest.Config{Host: api.URL}, Config{Installation: uuid.NewString(), Settings: Settings{Namespace: "workspaces"}})
	check(t, err)
	t.Cleanup(func() { _ = r.Close() })
	r.record(t.Context(), "sha256:1", "lab:1", facts{Env: []string{"A=1"}})
	if f, ok, err := r.recorded(t.Context(), "sha256:1"); err != nil || !ok || len(f.Env) != 1 || writes != 1 {
		t.Errorf("%+v, %v, %v, %d requests that write", f, ok, err, writes)
	}
	r.record(t.Context(), "sha256:2", "lab:2", facts{Env: []string{strings.Repeat("A", maxRecord)}})
	if writes != 1 {
		t.Error("a record that is too long was sent")
	}
	for i := range 2 * maxRecords {
		r.known.put(strconv.Itoa(i), facts{})
	}
	if n := len(r.known.facts); n > maxRecords {
		t.Errorf("%d facts are kept", n)
	}
}

// The limit of a workspace's files on the node's disk is no request, by which nodes would be full.
func TestEphemeralStorage(t *testing.T) {
	t.Parallel()
	for size, want := range map[string]string{"1Gi": "1Gi", "0": "0"} {
		r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1", EphemeralSize: resource.MustParse(size)}, IDEImage: "codehub/ide:1"}}
		p, err := r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 1500000}, r.newClaim("ws-home", nil), chosenImage{name: "lab:1"}, facts{})
		check(t, err)
		got := p.Spec.Containers[0].Resources
		if limit := got.Limits[corev1.ResourceEphemeralStorage]; limit.String() != want || !got.Requests.StorageEphemeral().IsZero() {
			t.Errorf("%s: %+v", size, got)
		}
	}
}

// A workspace of any size requests a share of its limits, so that several fit on a node.
func TestRequestsAreShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size                workspace.Size
		cpu, memory         int
		wantCPU, wantMemory string
	}{
		{workspace.Size{NanoCPUs: 2e9, Memory: 4 << 30}, 10, 25, "200m", "1Gi"},
		{workspace.Size{NanoCPUs: 16e9, Memory: 64 << 30}, 10, 25, "1600m", "16Gi"},
		{workspace.Size{NanoCPUs: 2e9, Memory: 4 << 30}, 100, 100, "2", "4Gi"},
		{workspace.Size{NanoCPUs: 2e9, Memory: 4 << 30}, 0, 0, "0", "0"},
		{workspace.Size{}, 10, 25, "0", "0"},
	} {
		r := &Runtime{cfg: Config{Settings: Settings{ServerImage: "codehub/server:1", CPUShare: c.cpu, MemoryShare: c.memory}, IDEImage: "codehub/ide:1"}}
		p, err := r.workspacePod(runtime.ContainerSpec{Workspace: "w", UID: 1500000, Size: c.size}, r.newClaim("ws-home", nil), chosenImage{name: "lab:1"}, facts{})
		check(t, err)
		got := p.Spec.Containers[0].Resources
		if cpu, memory := resource.MustParse(c.wantCPU), resource.MustParse(c.wantMemory); got.Requests.Cpu().Cmp(cpu) != 0 || got.Requests.Memory().Cmp(memory) != 0 || len(got.Requests) != len(got.Limits) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// A start that waits for another call to describe its image, whose node pulls the image, says so: it
// uses up neither the deadline of its start nor a place among the operations.
func TestWaitForDescriptionIsReported(t *testing.T) {
	t.Parallel()
	r := &Runtime{}
	c := chosenImage{ref: "registry.internal/team:1", name: "registry.internal/team:1"} // only the nodes reach it
	unlock, err := r.describing.lock(t.Context(), c.name)
	check(t, err)
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	said := 0
	_, _, err = r.factsOf(ctx, c, &corev1.PersistentVolumeClaim{}, func(p runtime.Progress) {
		if p.Step != runtime.StepWaitingPull {
			t.Errorf("step %s", p.Step)
		}
		if said++; said == 2 {
			cancel()
		}
	})
	if err == nil {
		t.Error("it did not wait")
	}
}
