package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	networktypes "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/wall"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// outside is a network beyond this machine: a namespace behind a veth pair.
type outside struct {
	veth   string     // the interface to it
	free   netip.Addr // an ordinary address
	denied netip.Addr // in a range that the tests deny
	local  netip.Addr // link-local, on this machine's side
	port   string     // a service listens on it, on every address, and on 53
}

const metadata = "169.254.169.254"

// outsides is held by the test that has an outside.
var outsides sync.Mutex

// newOutside creates it with addresses that differ from those of other processes.
func newOutside(t *testing.T) outside {
	t.Helper()
	harness.NeedsDocker(t)
	outsides.Lock()
	t.Cleanup(outsides.Unlock)
	removeOutsides(t)
	name := fmt.Sprintf("cho%d-%s", os.Getpid(), engine.RandomHex(1))
	third := 1 + os.Getpid()%250
	prefix := fmt.Sprintf("198.18.%d.", third)
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "del", name) })
	ip(t, "link", "add", name, "type", "veth", "peer", "name", "inside", "netns", name)
	t.Cleanup(func() { ip(t, "link", "del", name) }) // at once, unlike the removal of the namespace
	ip(t, "addr", "add", prefix+"1/24", "dev", name)
	local := fmt.Sprintf("169.254.%d.9", third%160)
	ip(t, "addr", "add", local+"/32", "dev", name)
	ip(t, "link", "set", name, "up")
	for _, addr := range []string{prefix + "2/24", prefix + "130/24", metadata + "/32"} {
		ip(t, "-n", name, "addr", "add", addr, "dev", "inside")
	}
	ip(t, "-n", name, "link", "set", "inside", "up")
	ip(t, "-n", name, "route", "add", "default", "via", prefix+"1")
	// As a cloud provider routes it: beyond the machine. There is only one such
	// address, and a test of another process may be using it.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		out, err := exec.Command("ip", "route", "add", metadata+"/32", "dev", name).CombinedOutput()
		if err == nil {
			break
		}
		if !strings.Contains(string(out), "File exists") {
			t.Fatalf("ip route add: %v: %s", err, out)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the route to %s is taken: %s", metadata, out)
		case <-time.After(100 * time.Millisecond):
		}
	}
	listenIn(t, name, ":53")
	return outside{
		veth:   name,
		free:   netip.MustParseAddr(prefix + "2"),
		local:  netip.MustParseAddr(local),
		denied: netip.MustParseAddr(prefix + "130"),
		port:   listenIn(t, name, ":0"),
	}
}

// also gives the outside another address, which no other test has.
func (out outside) also(t *testing.T, addr string) netip.Addr {
	t.Helper()
	ip(t, "-n", out.veth, "addr", "add", addr+"/32", "dev", "inside")
	ip(t, "route", "add", addr+"/32", "dev", out.veth)
	return netip.MustParseAddr(addr)
}

// bridged is a machine behind a bridge of this host that Docker did not create.
type bridged struct{ bridge, service string }

func newBridged(t *testing.T, n int) bridged {
	t.Helper()
	suffix := engine.RandomHex(3)
	bridge, veth, namespace := "chout-b"+suffix, "chout-v"+suffix, "chout-n"+suffix
	prefix := fmt.Sprintf("198.19.%d.", (2*os.Getpid()+n)%250)
	ip(t, "link", "add", bridge, "type", "bridge")
	t.Cleanup(func() { ip(t, "link", "del", bridge) })
	ip(t, "netns", "add", namespace)
	t.Cleanup(func() { ip(t, "netns", "del", namespace) })
	ip(t, "link", "add", veth, "type", "veth", "peer", "name", "inside", "netns", namespace)
	t.Cleanup(func() { ip(t, "link", "del", veth) })
	ip(t, "link", "set", veth, "master", bridge, "up")
	ip(t, "addr", "add", prefix+"1/24", "dev", bridge)
	ip(t, "link", "set", bridge, "up")
	ip(t, "-n", namespace, "addr", "add", prefix+"2/24", "dev", "inside")
	ip(t, "-n", namespace, "link", "set", "inside", "up")
	ip(t, "-n", namespace, "route", "add", "default", "via", prefix+"1")
	return bridged{bridge, net.JoinHostPort(prefix+"2", listenIn(t, namespace, ":0"))}
}

// iptables changes Docker's own rules.
func iptables(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("iptables", append([]string{"-w"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("iptables %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s (the tests of the wall need root and iproute2)", strings.Join(args, " "), err, out)
	}
}

// inNamespace runs f in a network namespace, which is a name or a path, or in the test's own for "".
func inNamespace(t *testing.T, namespace string, f func()) {
	t.Helper()
	if namespace == "" {
		f()
		return
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		path := namespace
		if !filepath.IsAbs(path) {
			path = "/var/run/netns/" + namespace
		}
		var fd int
		if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return
		}
		defer unix.Close(fd)
		if err = unix.Setns(fd, unix.CLONE_NEWNET); err == nil {
			f()
		}
	}()
	<-done
	if err != nil {
		t.Fatalf("enter namespace %q: %v", namespace, err)
	}
}

// listenIn listens in a network namespace, or in the test's own for "", and returns
// the port. It accepts connections and closes them.
func listenIn(t *testing.T, namespace, addr string) string {
	t.Helper()
	return acceptIn(t, namespace, addr, func(c net.Conn) { c.Close() })
}

// acceptIn is listenIn with a function for the connections.
func acceptIn(t *testing.T, namespace, addr string, accepted func(net.Conn)) string {
	t.Helper()
	var l net.Listener
	var err error
	inNamespace(t, namespace, func() { l, err = net.Listen("tcp4", addr) })
	if err != nil {
		t.Fatalf("listen on %s in namespace %q: %v", addr, namespace, err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted(c)
		}
	}()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// published runs a container that is not a workspace, on its own network and with a
// port on every address of the host. It returns the network's bridge, its own
// address and that port.
func published(t *testing.T, r *Runtime) (bridge, addr, port string) {
	t.Helper()
	ctx := t.Context()
	name := "codehub-test-" + engine.RandomHex(4)
	subnet := dockertest.NewSubnet(t)
	check(t, subnet.UsedBy(r.cfg.Installation))
	bridge = "chout-d" + engine.RandomHex(3)
	if _, err := r.engine.API.NetworkCreate(ctx, name, client.NetworkCreateOptions{
		Labels:  r.engine.Labels("test", "", ""),
		Options: map[string]string{"com.docker.network.bridge.name": bridge},
		IPAM:    &networktypes.IPAM{Driver: "default", Config: []networktypes.IPAMConfig{{Subnet: subnet.Prefix}}},
	}); err != nil {
		t.Fatal(err)
	}
	c, err := r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: harness.TestImage(), Labels: r.engine.Labels("test", "", ""), ExposedPorts: networktypes.PortSet{idePort: {}}},
		HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode(name), PortBindings: networktypes.PortMap{
			idePort: {{HostIP: netip.IPv4Unspecified()}},
		}},
	})
	check(t, err)
	must(t)(r.engine.API.ContainerStart(ctx, c.ID, client.ContainerStartOptions{}))
	info, err := r.engine.API.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	check(t, err)
	net := info.Container.NetworkSettings
	return bridge, net.Networks[name].IPAddress.String(), net.Ports[idePort][0].HostPort
}

// hostAddresses lists the IPv4 addresses of this machine, except loopback and
// those of interfaces that tests create and are not among own. A bridge of Docker
// may be the draft of another test's network, which exists for a moment only.
func hostAddresses(t *testing.T, own ...string) []string {
	t.Helper()
	interfaces, err := net.Interfaces()
	check(t, err)
	var out []string
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil || !slices.Contains(own, i.Name) && slices.ContainsFunc([]string{"br-", "chout-", "chd", "chb", "ck", "codehub-k8s"}, func(prefix string) bool { return strings.HasPrefix(i.Name, prefix) }) {
			continue // another test's, and perhaps already removed
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
				out = append(out, n.IP.String())
			}
		}
	}
	return out
}

// probeFrom tries to connect from a workspace to all targets at once.
func probeFrom(t *testing.T, up runtime.Upstream, timeout string, targets map[string]string) map[string]string {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	out := map[string]string{}
	for name, addr := range targets {
		wg.Go(func() {
			var answer struct{ Result, Error string }
			raw := request(t, up, http.MethodGet, "/probe?timeout="+timeout+"&addr="+url.QueryEscape(addr), nil)
			err := json.Unmarshal(raw, &answer)
			mu.Lock()
			defer mu.Unlock()
			out[name] = answer.Result
			if err != nil {
				out[name] = err.Error()
			}
		})
	}
	wg.Wait()
	return out
}

// removeOutsides removes what tests of processes that were killed have left. Their route to
// the metadata address would be in the way.
func removeOutsides(t *testing.T) {
	t.Helper()
	list, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		t.Fatalf("ip netns list: %v", err)
	}
	for line := range strings.Lines(string(list)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		var pid int
		if _, err := fmt.Sscanf(name, "cho%d-", &pid); err != nil || unix.Kill(pid, 0) == nil {
			continue
		}
		_ = exec.Command("ip", "link", "del", name).Run() // another test may be faster
		_ = exec.Command("ip", "netns", "del", name).Run()
	}
}

func TestWall(t *testing.T) {
	t.Parallel()
	out := newOutside(t)
	private := func(last string) netip.Addr { return out.also(t, fmt.Sprintf("10.254.%d.%s", out.free.As4()[2], last)) }
	company, server, secret := private("2"), private("3"), private("4")
	r := newRuntime(t, func(c *Config) {
		c.Denied = []netip.Prefix{netip.PrefixFrom(out.denied, 25).Masked(), netip.PrefixFrom(secret, 32)}
		c.Allowed = []netip.Prefix{netip.PrefixFrom(server, 32), netip.PrefixFrom(secret, 31), netip.MustParsePrefix("100.64.0.0/10")}
	})
	otherInstallation := newRuntime(t, nil) // another installation
	uplink, local := newBridged(t, 1), newBridged(t, 2)
	r.network.Apply = func(s wall.Spec) error {
		s.Nameservers = []netip.Addr{out.denied, company}
		s.Outward = []string{uplink.bridge}
		return wall.Apply(s)
	}
	inside, neighbour, other := running(t, r), running(t, r), running(t, otherInstallation)
	for _, x := range []*Runtime{r, otherInstallation} {
		if net, err := x.network.Checked(t.Context(), time.Minute); err != nil || !net.Direct {
			t.Fatal("the tests of the wall must run on Docker's host")
		}
	}

	service := listenIn(t, "", "0.0.0.0:0") // represents any service on the host
	boxBridge, boxAddr, boxPort := published(t, r)
	closed := map[string]string{
		"the neighbour's IDE":                 neighbour.Addr,
		"the neighbour's agent":               neighbour.Agent,
		"an agent of another installation":    other.Agent,
		"a workspace of another installation": other.Addr,
		"the metadata service":                net.JoinHostPort(metadata, out.port),
		"a link-local address of the host":    net.JoinHostPort(out.local.String(), service),
		"a range that is denied by setting":   net.JoinHostPort(out.denied.String(), out.port),
		"a private network":                   net.JoinHostPort(company.String(), out.port),
		"denied within what is allowed":       net.JoinHostPort(secret.String(), out.port),
		"another container":                   net.JoinHostPort(boxAddr, strconv.Itoa(runtime.IDEPort)),
		"a machine on a bridge of this host":  local.service,
	}
	for _, cloud := range []string{"100.100.100.200", "168.63.129.16", "192.0.0.192"} {
		closed["the metadata service "+cloud] = net.JoinHostPort(out.also(t, cloud).String(), out.port)
	}
	for _, addr := range hostAddresses(t, r.engine.Names.Bridge, out.veth, boxBridge) {
		closed["a service of the host on "+addr] = net.JoinHostPort(addr, service)
		closed["a published port on "+addr] = net.JoinHostPort(addr, boxPort)
	}
	open := map[string]string{
		"the outside":                               net.JoinHostPort(out.free.String(), out.port),
		"the outside, by way of a bridge":           uplink.service,
		"the nameserver, in a range that is denied": net.JoinHostPort(out.denied.String(), "53"),
		"the nameserver, in a private network":      net.JoinHostPort(company.String(), "53"),
		"a private network that is allowed":         net.JoinHostPort(server.String(), out.port),
	}
	name := map[string]string{"name": "name.invalid:1"}

	expect := func(what string, up runtime.Upstream, targets map[string]string, timeout string, reached bool) {
		t.Helper()
		for name, result := range probeFrom(t, up, timeout, targets) {
			if (result == "ok") != reached {
				t.Errorf("%s: %s (%s): %s, want reached = %v", what, name, targets[name], result, reached)
			}
		}
	}
	// Docker isolates its bridges and neighbours on one. Its rules are disabled
	// here, so that only the wall is tested.
	for _, flag := range []string{"-i", "-o"} {
		rule := []string{"DOCKER-USER", flag, r.engine.Names.Bridge, "-j", "ACCEPT"}
		iptables(t, append([]string{"-I"}, rule...)...)
		t.Cleanup(func() { iptables(t, append([]string{"-D"}, rule...)...) })
	}

	expect("with the wall", inside, closed, "1500ms", false)
	expect("with the wall", inside, open, "20s", true)
	resolved := probeFrom(t, inside, "20s", name)

	for _, x := range []*Runtime{r, otherInstallation} {
		check(t, wall.Remove(x.engine.Names.Table))
	}
	expect("without the wall", inside, closed, "20s", true)
	expect("without the wall", inside, open, "20s", true)
	if got := probeFrom(t, inside, "20s", name); got["name"] != resolved["name"] {
		t.Errorf("a name resolves to %q with the wall and to %q without", resolved["name"], got["name"])
	}

	for _, x := range []*Runtime{r, otherInstallation} {
		check(t, x.Prepare(t.Context()))
	}
	expect("with the wall again", inside, closed, "1500ms", false)
	expect("with the wall again", inside, open, "20s", true)
}
