package docker

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	networktypes "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/dockertest"
	"codehub/internal/testing/harness"
)

// Other networks use all address pools of Docker. Without a configured subnet Prepare's error
// names the setting; with one, the network is created on it.
func TestPrepareWithoutFreePool(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	pools := []*dockertest.Subnet{dockertest.NewSubnet(t), dockertest.NewSubnet(t)} // 16 networks each
	var args []string
	for _, p := range pools {
		args = append(args, "--default-address-pool", fmt.Sprintf("base=%s,size=29", p))
	}
	d := dockertest.Start(t, dockertest.Options{Args: args})
	ours := func(subnet netip.Prefix) *Runtime {
		return newRuntime(t, func(c *Config) { c.Host, c.Subnet, c.AllowNoWall = d.Host, subnet, true })
	}

	first := ours(netip.Prefix{})
	check(t, first.Prepare(t.Context()))
	if got := networkSubnet(t, first); !pools[0].Overlaps(got) && !pools[1].Overlaps(got) {
		t.Errorf("Docker chose %s", got)
	}
	created := 0
	for ; created < 100; created++ {
		other, err := d.API.NetworkCreate(t.Context(), fmt.Sprint("other-", created), client.NetworkCreateOptions{})
		if err != nil {
			break
		}
		t.Cleanup(func() { // their interfaces outlive the daemon
			if _, err := d.API.NetworkRemove(context.Background(), other.ID, client.NetworkRemoveOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	if created != 31 {
		t.Errorf("%d other networks used all pools, want 31", created)
	}

	err := ours(netip.Prefix{}).Prepare(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set CODEHUB_NETWORK_SUBNET") {
		t.Errorf("without a free pool: %v", err)
	}
	own := dockertest.NewSubnet(t)
	set := ours(own.Prefix)
	if err := set.Prepare(t.Context()); err != nil {
		t.Fatalf("with a subnet: %v", err)
	}
	if got := networkSubnet(t, set); got != own.Prefix {
		t.Errorf("the network has %s, want %s", got, own)
	}

	// An overlapping subnet is refused, and the error names the other network.
	err = ours(netip.PrefixFrom(own.Addr(), 26)).Prepare(t.Context())
	if err == nil || !strings.Contains(err.Error(), "overlaps with the network "+set.engine.Names.Network) {
		t.Errorf("with a subnet that overlaps: %v", err)
	}
}

// Without a configured subnet Docker chooses one. Two replicas may create the network at once,
// and a crash may have left a draft of the network.
func TestPrepareOnSubnetOfDocker(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	pool := dockertest.NewSubnet(t)
	d := dockertest.Start(t, dockertest.Options{Args: []string{"--default-address-pool", fmt.Sprintf("base=%s,size=27", pool)}, Image: harness.TestImage()})
	first := newRuntime(t, func(c *Config) { c.Host, c.Subnet = d.Host, netip.Prefix{} })
	second := newRuntime(t, func(c *Config) {
		c.Host, c.Subnet, c.Installation = d.Host, netip.Prefix{}, first.cfg.Installation
	})
	must(t)(first.engine.API.NetworkCreate(t.Context(), first.engine.Names.Network, first.network.Options(engine.RoleDraft, netip.Prefix{})))
	var replicas sync.WaitGroup
	for _, r := range []*Runtime{first, second} {
		replicas.Go(func() {
			// Each may find the other's draft and must then retry.
			harness.Eventually(t, "the network is prepared", func() bool { return r.Prepare(t.Context()) == nil })
		})
	}
	replicas.Wait()
	if a, b := networkSubnet(t, first), networkSubnet(t, second); a != b || !pool.Overlaps(a) {
		t.Fatalf("subnets %s and %s, from a pool on %s", a, b, pool)
	}
	running(t, first) // with a chosen address
}

// An existing network keeps its subnet.
func TestPrepareKeepsSubnetOfNetwork(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	other := netip.PrefixFrom(r.cfg.Subnet.Addr(), 26)
	_, err := r.engine.API.NetworkCreate(t.Context(), r.engine.Names.Network, client.NetworkCreateOptions{
		Driver: "bridge", Options: r.network.Options(engine.RoleNetwork, other).Options, Labels: r.engine.Labels(engine.RoleNetwork, "", ""),
		IPAM: &networktypes.IPAM{Driver: "default", Config: []networktypes.IPAMConfig{{Subnet: other}}},
	})
	check(t, err)
	check(t, r.Prepare(t.Context()))
	if got := networkSubnet(t, r); got != other {
		t.Errorf("addresses are from %s, want %s", got, other)
	}
}

func networkSubnet(t *testing.T, r *Runtime) netip.Prefix {
	t.Helper()
	net, err := r.network.Checked(t.Context(), time.Minute)
	check(t, err)
	return net.Subnet
}
