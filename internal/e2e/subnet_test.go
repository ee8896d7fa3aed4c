package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/dockertest"
)

// Other networks take all address pools of Docker. A workspace then does not
// start, and its message says what to do; after a restart with the setting, and
// Recover, it runs.
func TestServerWithoutFreeSubnet(t *testing.T) {
	t.Parallel()
	pool := dockertest.NewSubnet(t)
	e := dockertest.Start(t, dockertest.Options{Image: env.testImage, Cleanup: cleanup,
		Args: []string{"--default-address-pool", fmt.Sprintf("base=%s,size=29", pool)}})
	for n := range 16 {
		other, err := e.API.NetworkCreate(t.Context(), fmt.Sprint("other-", n), client.NetworkCreateOptions{
			// The tests of the network isolation recognize bridges of other
			// tests by this prefix.
			Options: map[string]string{"com.docker.network.bridge.name": fmt.Sprint("br-ch-", os.Getpid(), "-", n)},
		})
		if err != nil {
			t.Fatal(err)
		}
		cleanup(t, func() { // their interfaces outlive the daemon
			if err := removeNetwork(e.API, other.ID); err != nil {
				t.Error(err)
			}
		})
	}
	s := startQuick(t, "DOCKER_HOST="+e.Host, "CODEHUB_NETWORK_SUBNET=")
	id := s.create(api.CreateWorkspace{Name: "one"})
	w := s.await(id, "a workspace with CODEHUB_NETWORK_SUBNET in its error", func(w api.Workspace) bool {
		return strings.Contains(str(w.ErrorMessage), "set CODEHUB_NETWORK_SUBNET")
	})
	t.Logf("phase %s, error %s: %s", w.Phase, str(w.ErrorReason), str(w.ErrorMessage))
	s.Stop()
	s.Set(s.subnet.Setting())
	s.restart()
	s.await(id, "RUNNING", func(w api.Workspace) bool {
		if w.Phase == "ERROR" && w.Operation == "NONE" {
			if _, err := s.api.Recover(t.Context(), id, api.Recover{}); err != nil {
				t.Log(err)
			}
		}
		return w.Phase == "RUNNING" && w.Operation == "NONE"
	})
}

func removeNetwork(docker *client.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := docker.NetworkRemove(ctx, id, client.NetworkRemoveOptions{})
	return err
}
