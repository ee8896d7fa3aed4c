package inside

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/runtime/agent"
)

// Docker's name server, which is no process of the container, is left out; a program of
// the workspace at its address is not.
func TestPortsOfDockerAreHidden(t *testing.T) {
	t.Parallel()
	sockets := map[uint64]netip.AddrPort{
		1: netip.MustParseAddrPort("127.0.0.11:40001"),
		2: netip.MustParseAddrPort("127.0.0.11:40002"),
		3: netip.MustParseAddrPort("127.0.0.1:40003"),
		4: netip.MustParseAddrPort("0.0.0.0:8080"),
	}
	known := map[uint64]listener{1: {since: 5}, 2: {process: "dnsmasq", pid: 7, since: 5}, 3: {since: 6}, 4: {pid: 8, since: 5}}
	want := []agent.Port{{Port: 40002, Local: true, Process: "dnsmasq", PID: 7, Since: 5}, {Port: 40003, Local: true, Since: 6}}
	if diff := cmp.Diff(want, merge(sockets, known, []int{8080})); diff != "" {
		t.Error(diff)
	}
}
