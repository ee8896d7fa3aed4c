package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	networktypes "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/seccomp"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

func inspectOf(t *testing.T, r *Runtime, up runtime.Upstream) container.InspectResponse {
	t.Helper()
	c, err := r.engine.API.ContainerInspect(t.Context(), up.ContainerID, client.ContainerInspectOptions{})
	check(t, err)
	return c.Container
}

func TestHardening(t *testing.T) {
	t.Parallel()
	const gallery = `{"serviceUrl": "https://gallery.example.com/vscode/gallery"}`
	limits := func(c *Config) {
		c.Pids = 64
		c.LogMaxBytes, c.LogMaxFiles = 1<<20, 3
	}
	cases := []struct {
		name     string
		change   func(*Config)
		capDrop  []string
		security []string
		gallery  []string
	}{
		{"default", limits, []string{"ALL"}, []string{seccomp.Option(), "no-new-privileges:true"}, nil},
		{"sudo", func(c *Config) { limits(c); c.Sudo, c.Gallery = true, gallery }, []string{"NET_RAW"}, []string{seccomp.Option()}, []string{"EXTENSIONS_GALLERY=" + gallery}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRuntime(t, tc.change)
			up := running(t, r)
			c := inspectOf(t, r, up)
			host := c.HostConfig
			galleries := slices.DeleteFunc(c.Config.Env, func(v string) bool { return !strings.HasPrefix(v, "EXTENSIONS_GALLERY=") })
			if !slices.Equal(galleries, tc.gallery) {
				t.Errorf("variables: %q, want %q", galleries, tc.gallery)
			}
			n, err := r.engine.API.NetworkInspect(t.Context(), r.engine.Names.Network, client.NetworkInspectOptions{})
			check(t, err)
			if net := n.Network; net.Options["com.docker.network.bridge.enable_icc"] != "false" || net.EnableIPv6 || net.Internal || !r.engine.Owns(net.Labels, engine.RoleNetwork) {
				t.Errorf("network = %+v", net.Network)
			}
			got := map[string]any{
				"cap drop": normal(host.CapDrop), "cap add": len(host.CapAdd), "security": host.SecurityOpt,
				"privileged": host.Privileged, "restart": string(host.RestartPolicy.Name),
				"cpus": host.NanoCPUs, "memory": host.Memory, "memory and swap": host.MemorySwap, "pids": *host.PidsLimit,
				"log": host.LogConfig, "network": string(host.NetworkMode), "published": len(host.PortBindings),
				"binds": len(host.Binds), "mounts": mountsOf(c),
				"health check": c.Config.Healthcheck.Test, "user": c.Config.User,
			}
			want := map[string]any{
				"cap drop": tc.capDrop, "cap add": 0, "security": tc.security,
				"privileged": false, "restart": "no",
				"cpus": int64(15e8), "memory": int64(1 << 30), "memory and swap": int64(1 << 30), "pids": int64(64),
				"log":     container.LogConfig{Type: "json-file", Config: map[string]string{"max-size": strconv.Itoa(1 << 20), "max-file": "3"}},
				"network": r.engine.Names.Network, "published": 0,
				"binds": 0, "mounts": map[string]bool{runtime.HomeDir: true, account.AgentDir: false},
				"health check": []string{"NONE"}, "user": "1000:1000",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("container (-want +got):\n%s", diff)
			}
		})
	}
}

// mountsOf returns where something is mounted and whether it can be written to.
func mountsOf(c container.InspectResponse) map[string]bool {
	out := map[string]bool{}
	for _, m := range c.Mounts {
		out[m.Destination] = m.RW
	}
	return out
}

// normal normalizes the names of capabilities, which differ between versions of
// Docker.
func normal(caps []string) []string {
	out := slices.Clone(caps)
	for i, c := range out {
		if len(c) > 4 && c[:4] == "CAP_" {
			out[i] = c[4:]
		}
	}
	return out
}

func TestPublishedPortIsLoopbackOnly(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, func(c *Config) { c.Publish = true })
	up := running(t, r) // it responded on that port
	addr := netip.MustParseAddrPort(up.Addr)
	if !addr.Addr().IsLoopback() {
		t.Fatalf("address = %s, want one on loopback", up.Addr)
	}
	if agent := netip.MustParseAddrPort(up.Agent); !agent.Addr().IsLoopback() || agent == addr {
		t.Errorf("the agent's address = %s, the IDE's %s", agent, addr)
	}
	hello(t, up)
	list, err := r.Containers(t.Context())
	if err != nil || len(list) != 1 || list[0].Addr != up.Addr {
		t.Fatalf("containers = %+v, %v; want the address %s", list, err, up.Addr)
	}
	for port, bindings := range inspectOf(t, r, up).NetworkSettings.Ports {
		for _, b := range bindings {
			if !b.HostIP.IsLoopback() {
				t.Errorf("port %s is published on %s", port, b.HostIP)
			}
		}
	}
	var stat struct {
		UID int `json:"uid"`
	}
	if err := json.Unmarshal(request(t, up, http.MethodGet, "/stat", nil), &stat); err != nil || stat.UID != 1000 {
		t.Errorf("stat of the home = %+v, %v", stat, err)
	}
}

// A start creates the network where it is missing, or where a crash has left a draft of it.
func TestStartCreatesNetwork(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	must(t)(r.engine.API.NetworkCreate(t.Context(), r.engine.Names.Network, r.network.Options(engine.RoleDraft, r.cfg.Subnet)))
	spec := seededHome(t, r)
	check(t, r.RemoveContainer(t.Context(), start(t, r, spec).ID, 0)) // with a chosen address
	must(t)(r.engine.API.NetworkRemove(t.Context(), r.engine.Names.Network, client.NetworkRemoveOptions{}))
	start(t, r, spec)
}

func TestForeignNetworkIsReported(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	made, err := r.engine.API.NetworkCreate(t.Context(), r.engine.Names.Network, client.NetworkCreateOptions{
		IPAM: &networktypes.IPAM{Driver: "default", Config: []networktypes.IPAMConfig{{Subnet: r.cfg.Subnet}}},
	})
	check(t, err)
	t.Cleanup(func() {
		if _, err := r.engine.API.NetworkRemove(context.Background(), made.ID, client.NetworkRemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	if err := r.Prepare(t.Context()); err == nil {
		t.Fatal("Prepare used the network of another program")
	}
}

func TestTakenAddressIsRetried(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	up := running(t, r)
	taken := netip.MustParseAddrPort(up.Addr).Addr()

	// After a restart, addresses in use are not known. This one is next.
	installation, subnet := r.cfg.Installation, r.cfg.Subnet
	r = newRuntime(t, func(c *Config) { c.Installation, c.Subnet = installation, subnet })
	check(t, r.Prepare(t.Context()))
	before := taken.Prev()
	if first := subnet.Addr().Next().Next(); taken == first {
		before = netip.AddrFrom4([4]byte{first.As4()[0], first.As4()[1], first.As4()[2], first.As4()[3] + byte(1<<(32-subnet.Bits())-4)})
	}
	for r.network.TakeAddress() != before {
	}

	spec := seededHome(t, r)
	c, err := r.StartContainer(t.Context(), spec, nil)
	check(t, err)
	if netip.MustParseAddrPort(c.Addr).Addr() == taken {
		t.Fatalf("two containers at %s", taken)
	}
	awaitHealthy(t, r, c)
	list, err := r.Containers(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("containers = %+v, %v", list, err)
	}
}

// A program that the image lacks ends the container, with a shell's exit code for it.
func TestMissingProgram(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	r := newRuntime(t, nil)
	image := importImage(t, r, []string{`ENTRYPOINT ["/no-such-program"]`, "LABEL " + account.LabelIDE + "=" + account.IDEIncluded}, homeTar(t))
	spec := newHome()
	spec.Image = image
	seed(t, r, spec)
	must(t)(r.StartContainer(t.Context(), spec, nil))
	harness.Eventually(t, "the container has ended with code 127", func() bool {
		list, err := r.Containers(t.Context())
		return err == nil && len(list) == 1 && list[0].State == runtime.ContainerExited && strings.Contains(list[0].Detail, "(127)")
	})
	var log bytes.Buffer
	if err := r.Logs(t.Context(), spec.Workspace, 0, false, &log); err != nil || !strings.Contains(log.String(), "no-such-program") {
		t.Errorf("the log does not name the program: %v\n%s", err, &log)
	}
}

func TestNewValidatesConfig(t *testing.T) {
	t.Parallel()
	r := newOffline(t, nil)
	for name, cfg := range map[string]Config{
		"no installation":      {Log: r.engine.Log},
		"relative data folder": {Installation: uuid.NewString(), DataDir: "data", Log: r.engine.Log},
		"no logger":            {Installation: uuid.NewString()},
		"not an address":       {Installation: uuid.NewString(), Host: "nowhere", Log: r.engine.Log},
	} {
		if r, err := New(t.Context(), cfg); err == nil {
			t.Errorf("%s: New = %v", name, r)
		}
	}
	for what, spec := range map[string]runtime.VolumeSpec{
		"an invalid workspace":    {Workspace: "../x", Storage: workspace.StorageLocalDir},
		"another storage backend": {Workspace: newHome().Workspace, Storage: "k8s-pvc"},
	} {
		if err := r.CreateVolume(t.Context(), spec, nil); err == nil || errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("a volume of %s: %v", what, err)
		}
	}
}

func TestHostDataDir(t *testing.T) {
	t.Parallel()
	r := newOffline(t, func(c *Config) { c.DataDir, c.HostDataDir = "/in/the/container", "/on/the/host" })
	spec := newHome()
	spec.Storage = workspace.StorageLocalDir
	m := r.homes.Mount(spec, "")
	if want := "/on/the/host/homes/" + string(spec.Workspace) + "/home"; m.Source != want || string(m.Type) != "bind" {
		t.Errorf("mount = %+v, want a bind of %s", m, want)
	}
}
