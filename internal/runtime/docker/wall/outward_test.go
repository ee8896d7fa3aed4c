package wall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOutwardBridges(t *testing.T) {
	t.Parallel()
	sys, proc := t.TempDir(), t.TempDir()
	for _, path := range []string{
		"eth0/device", "eth1/device", "bond0/lower_eth1", "bond0.7/lower_bond0", "veth1", "lo",
		"docker0/bridge", "docker0/lower_veth1",
		"virbr0/bridge",
		"br-lan/bridge", "br-lan/lower_eth0", "br-lan/lower_veth1",
		"vmbr7/bridge", "vmbr7/lower_bond0.7",
		"br-up/bridge", "br-six/bridge",
	} {
		if err := os.MkdirAll(filepath.Join(sys, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	zero := strings.Repeat("0", 32)
	routes := map[string]string{
		"route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n" +
			"br-up\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
			"docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n",
		"ipv6_route": zero + " 00 " + zero + " 00 fe80000000000000000000000000000f 00000400 00000001 00000000 00000003 br-six\n" +
			"fe800000000000000000000000000000 40 " + zero + " 00 " + zero + " 00000100 00000001 00000000 00000001 virbr0\n" +
			zero + " 00 " + zero + " 00 " + zero + " ffffffff 00000001 00000000 00200200 lo\n",
	}
	for name, text := range routes {
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := uplinkBridgesIn(sys, proc)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"br-lan", "br-six", "br-up", "vmbr7"}, got); diff != "" {
		t.Errorf("bridges with an uplink (-want +got):\n%s", diff)
	}
	if err := os.Remove(filepath.Join(proc, "ipv6_route")); err != nil {
		t.Fatal(err)
	}
	if got, err = uplinkBridgesIn(sys, proc); err != nil || len(got) != 3 {
		t.Errorf("without IPv6: %q, %v", got, err)
	}
	if _, err := uplinkBridges(); err != nil {
		t.Errorf("on this host: %v", err)
	}
}
