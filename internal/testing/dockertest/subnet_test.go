package dockertest

import (
	"io"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/google/uuid"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/internal/testing/harness"
)

// killedEnv has the installation of a test process that is to be killed.
const killedEnv = "DOCKERTEST_KILLED"

func TestSubnetsAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[netip.Prefix]bool{}
	for range 20 {
		s := NewSubnet(t)
		if seen[s.Prefix] || !testRange.Overlaps(s.Prefix) {
			t.Fatalf("subnet %s", s.Prefix)
		}
		seen[s.Prefix] = true
	}
}

// A killed process's network is removed by the next run, one of a living process
// is not.
func TestNetworkOfKilledTestIsRemoved(t *testing.T) {
	harness.Verify(t)
	docker, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer docker.Close()
	id := os.Getenv(killedEnv)
	child := id != ""
	if !child {
		id = uuid.NewString()
	}
	create := func() string {
		s := NewSubnet(t)
		if err := s.UsedBy(id); err != nil {
			t.Fatal(err)
		}
		made, err := docker.NetworkCreate(t.Context(), "codehub-test-"+uuid.NewString(), client.NetworkCreateOptions{
			Labels: map[string]string{"codehub.installation": id},
			IPAM:   &network.IPAM{Driver: "default", Config: []network.IPAMConfig{{Subnet: s.Prefix}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return made.ID
	}
	exists := func(label string) bool {
		list, err := docker.NetworkList(t.Context(), client.NetworkListOptions{Filters: client.Filters{}.Add("label", "codehub.installation="+label)})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items) > 0
	}
	if child {
		create()
		_, _ = os.Stdout.WriteString("created\n")
		_, _ = io.ReadAll(os.Stdin) // until it is killed
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestNetworkOfKilledTestIsRemoved$")
	cmd.Env = append(os.Environ(), killedEnv+"="+id)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("created\n"))); err != nil {
		t.Fatal(err)
	}
	dir, err := subnetsDir()
	if err != nil {
		t.Fatal(err)
	}
	sweepLeftovers(dir)
	if !exists(id) {
		t.Error("the network of a living process was removed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// Another test process may be sweeping, too, and hold the lock of the file.
	harness.Eventually(t, "the network of a killed process is removed", func() bool {
		sweepLeftovers(dir)
		return !exists(id)
	})
}
