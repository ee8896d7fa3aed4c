package dockertest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/testing/e2e/proc"
)

// Tests take their networks from testRange, a /25 each, so that they need none
// of Docker's address pools.
var testRange = netip.MustParsePrefix("10.214.0.0/16")

const (
	testBits    = 25
	testSubnets = 1 << (testBits - 16)
)

// Subnet is an IPv4 network that a test has reserved until it ends: no other
// test of this machine is given the same one, and no interface uses it.
type Subnet struct {
	netip.Prefix
	file *os.File // locked; has the installations that use the subnet, a line each
}

// NewSubnet reserves a subnet. The first call of a process removes what killed
// test processes have left in theirs.
func NewSubnet(t testing.TB) *Subnet {
	t.Helper()
	dir, err := subnetsDir()
	if err != nil {
		t.Fatal(err)
	}
	sweepOnce.Do(func() { sweepLeftovers(dir) })
	used, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range rand.Perm(testSubnets) {
		subnet := subnetNumber(n)
		if overlapsAny(subnet, used) {
			continue
		}
		file, err := lock(filepath.Join(dir, strconv.Itoa(n)))
		if err != nil {
			continue
		}
		if left, err := io.ReadAll(file); err != nil || len(left) > 0 { // what could not be removed
			_ = file.Close()
			continue
		}
		if _, err := fmt.Fprintln(file); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := file.Truncate(0); err != nil {
				t.Error(err)
			}
			_ = file.Close()
		})
		return &Subnet{subnet, file}
	}
	t.Fatalf("no /%d of %s is free", testBits, testRange)
	return nil
}

// UsedBy records an installation that has its network in the subnet, so that
// the tests' next run removes what it has in Docker if this process is killed.
func (s *Subnet) UsedBy(installation string) error {
	_, err := fmt.Fprintln(s.file, installation)
	return err
}

// Setting is the subnet as a setting of a server.
func (s *Subnet) Setting() string { return "CODEHUB_NETWORK_SUBNET=" + s.String() }

func subnetNumber(n int) netip.Prefix {
	base := testRange.Addr().As4()
	binary.BigEndian.PutUint32(base[:], binary.BigEndian.Uint32(base[:])+uint32(n)<<(32-testBits))
	return netip.PrefixFrom(netip.AddrFrom4(base), testBits)
}

func overlapsAny(subnet netip.Prefix, used []net.Addr) bool {
	for _, a := range used {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(subnet) {
			return true
		}
	}
	return false
}

func subnetsDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "codehub-test-subnets")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() == 0o777 {
		return dir, err
	}
	return dir, os.Chmod(dir, 0o777) // root and others take turns
}

// lock opens a file that no living process has locked. The kernel unlocks it
// when the process ends.
func lock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	_ = file.Chmod(0o666) // root and other users take turns; the umask must not prevent it
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

var sweepOnce sync.Once

// sweepLeftovers removes from Docker the installations of dead test processes,
// and the interfaces that their own Docker daemons have left in their subnets.
// What cannot be removed stays for the next time.
func sweepLeftovers(dir string) {
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return
	}
	defer docker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for n := range testSubnets {
		path := filepath.Join(dir, strconv.Itoa(n))
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			continue
		}
		file, err := lock(path)
		if err != nil {
			continue // its process lives
		}
		installations, err := io.ReadAll(file)
		for _, id := range strings.Fields(string(installations)) {
			if err == nil {
				err = proc.Sweep(ctx, docker, id)
			}
		}
		if err == nil {
			err = removeBridges(ctx, docker, subnetNumber(n))
		}
		if err == nil {
			_ = file.Truncate(0)
		}
		_ = file.Close()
	}
}

// removeBridges removes the bridges that killed Docker daemons of tests have left in
// subnet. It touches nothing while the machine's own Docker has a network there, nor
// any interface that is not a bridge of Docker within subnet.
func removeBridges(ctx context.Context, docker *client.Client, subnet netip.Prefix) error {
	networks, err := docker.NetworkList(ctx, client.NetworkListOptions{})
	if err != nil {
		return err
	}
	for _, n := range networks.Items {
		for _, c := range n.IPAM.Config {
			if c.Subnet.IsValid() && c.Subnet.Overlaps(subnet) {
				return fmt.Errorf("the network %s uses %s", n.Name, c.Subnet)
			}
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil || !strings.HasPrefix(i.Name, "br-") || !withinSubnet(subnet, addrs) {
			continue
		}
		if out, err := exec.CommandContext(ctx, "ip", "link", "delete", i.Name, "type", "bridge").CombinedOutput(); err != nil {
			return fmt.Errorf("remove the interface %s: %w: %s", i.Name, err, out)
		}
	}
	return nil
}

// withinSubnet reports whether an interface has an IPv4 address, and none outside
// subnet.
func withinSubnet(subnet netip.Prefix, addrs []net.Addr) bool {
	within := 0
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		switch {
		case err != nil || !p.Addr().Is4():
		case p.Bits() < subnet.Bits() || !subnet.Contains(p.Addr()):
			return false
		default:
			within++
		}
	}
	return within > 0
}
