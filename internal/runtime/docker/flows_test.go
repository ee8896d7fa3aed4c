package docker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
)

// echoIn answers datagrams on port 7 in a network namespace.
func echoIn(t *testing.T, namespace string) {
	t.Helper()
	var conn net.PacketConn
	var err error
	inNamespace(t, namespace, func() { conn, err = net.ListenPacket("udp4", ":7") })
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buffer[:n], from)
		}
	}()
}

// holdFlows opens n flows from a workspace in the background, and returns how many
// of them were answered. They stay open until the end of the test.
func holdFlows(t *testing.T, r *Runtime, up runtime.Upstream, kind, addr string, n int) int {
	t.Helper()
	return holdProbe[struct{ Answered int }](t, r, up, "flows", kind, addr, strconv.Itoa(n), "1h").Answered
}

// holdProbe runs the probe in a workspace until the end of the test, and returns
// what it prints first.
func holdProbe[T any](t *testing.T, r *Runtime, up runtime.Upstream, args ...string) T {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	lines := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- insideLines(ctx, r, up.ContainerID, func(line string) {
			select {
			case lines <- line:
			default:
			}
		}, append([]string{"/probe"}, args...)...)
	}()
	t.Cleanup(func() { cancel(); <-ended })
	var none T
	select {
	case line := <-lines:
		return parsed[T](t, line)
	case err := <-ended:
		t.Fatalf("the probe ended: %v", err)
	case <-time.After(2 * time.Minute):
		t.Fatal("the probe printed nothing")
	}
	return none
}

// flowKept is less than how long the host remembers a flow of UDP or ICMP without packets
// (30 s).
const flowKept = 25 * time.Second

// A workspace that opens thousands of flows of any kind gets no more than its limit, and
// its neighbour does not notice.
func TestFlowsOfWorkspaceAreLimited(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const limit = 100
	out := newOutside(t)
	echoIn(t, out.veth)
	holding := holdingIn(t, out.veth)
	for _, kind := range []string{"tcp", "udp", "fragments", "icmp"} {
		t.Run(kind, func(t *testing.T) {
			r := newRuntime(t, func(c *Config) { c.Connections = limit })
			hostile, neighbour := running(t, r), running(t, r)
			for _, up := range []runtime.Upstream{hostile, neighbour} {
				putProbe(t, r, up.ContainerID, "")
			}
			addr := net.JoinHostPort(out.free.String(), "7")
			if kind == "tcp" {
				addr = net.JoinHostPort(out.free.String(), holding)
			}
			before, filled := tracked(t, hostile), time.Now()
			// The kernel may count some flows twice for a moment, and lose packets when the
			// machine is busy.
			if n := holdFlows(t, r, hostile, kind, addr, 3000); n < limit/10 || n > limit {
				t.Errorf("%d of 3000 flows were answered, want at most %d and no fewer than a tenth of that", n, limit)
			}
			if n := tracked(t, hostile) - before; n > limit+5 {
				t.Errorf("the host tracks %d flows of the workspace, want at most %d", n, limit)
			}
			if n := probeInside[struct{ Answered int }](t, r, neighbour.ContainerID, "/probe", "flows", kind, addr, "20", "0s").Answered; n != 20 {
				t.Errorf("%d of the neighbour's 20 flows were answered", n)
			}
			// The proxy still reaches the workspace.
			request(t, hostile, "GET", "/", nil)

			// New rules do not give the workspace another set of flows. On a busy machine the
			// host may have forgotten the flows before the rules are set.
			for try := 1; ; try++ {
				changeWall(t, r)
				check(t, r.Prepare(t.Context()))
				n := probeInside[struct{ Answered int }](t, r, hostile.ContainerID, "/probe", "flows", kind, addr, "50", "0s").Answered
				if n == 0 {
					break
				}
				if time.Since(filled) < flowKept || try == 5 {
					t.Errorf("%d more flows were answered after the wall was set again", n)
					break
				}
				filled = time.Now()
				holdFlows(t, r, hostile, kind, addr, 2*limit)
			}
			if n := probeInside[struct{ Answered int }](t, r, neighbour.ContainerID, "/probe", "flows", kind, addr, "20", "0s").Answered; n != 20 {
				t.Errorf("%d of the neighbour's 20 flows were answered after the wall was set again", n)
			}
		})
	}
}

// Connections that are closed at once are not counted, but the host tracks them for
// two more minutes. So their rate is limited, too.
func TestRateOfFlowsIsLimited(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	out := newOutside(t)
	r := newRuntime(t, func(c *Config) { c.Connections, c.ConnRate = 100, 10 })
	hostile, neighbour := running(t, r), running(t, r)
	for _, up := range []runtime.Upstream{hostile, neighbour} {
		putProbe(t, r, up.ContainerID, "")
	}
	addr := net.JoinHostPort(out.free.String(), out.port) // closes each connection
	before := tracked(t, hostile)
	begin := time.Now()
	probeInside[struct{ Answered int }](t, r, hostile.ContainerID, "/probe", "flows", "tcp", addr, "3000", "0s")
	most := 10*5 + 10*int(time.Since(begin)/time.Second+1)
	if n := tracked(t, hostile) - before; n > most {
		t.Errorf("the host tracks %d flows of the workspace, want at most %d", n, most)
	}
	if n := probeInside[struct{ Answered int }](t, r, neighbour.ContainerID, "/probe", "flows", "tcp", addr, "20", "0s").Answered; n != 20 {
		t.Errorf("%d of the neighbour's 20 flows were answered", n)
	}
}

// changeWall removes a rule behind codehub's back.
func changeWall(t *testing.T, r *Runtime) {
	t.Helper()
	c, err := nftables.New()
	check(t, err)
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: r.engine.Names.Table}
	rules, err := c.GetRules(table, &nftables.Chain{Name: "forward", Table: table})
	if err != nil || len(rules) == 0 {
		t.Fatalf("rules of the wall = %d, %v", len(rules), err)
	}
	check(t, c.DelRule(rules[len(rules)-1]))
	check(t, c.Flush())
	r.network.Forget()
}

// holdingIn listens in a network namespace, keeps open what it accepts, and returns
// the port.
func holdingIn(t *testing.T, namespace string) string {
	t.Helper()
	var held []net.Conn // only its goroutine uses it
	return acceptIn(t, namespace, ":0", func(c net.Conn) { held = append(held, c) })
}

// tracked counts the flows that the host tracks and that the workspace opened.
func tracked(t *testing.T, up runtime.Upstream) int {
	t.Helper()
	// Not /proc/net: a goroutine of acceptIn may have left the first thread in another
	// network namespace.
	raw, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
	if errors.Is(err, fs.ErrNotExist) {
		return 0 // the kernel does not list them; what is answered is tested anyway
	}
	check(t, err)
	source := "src=" + netip.MustParseAddrPort(up.Addr).Addr().String()
	n := 0
	for line := range strings.Lines(string(raw)) {
		// The first source is that of the flow's first packet.
		i := slices.IndexFunc(strings.Fields(line), func(f string) bool { return strings.HasPrefix(f, "src=") })
		if i >= 0 && strings.Fields(line)[i] == source {
			n++
		}
	}
	return n
}
