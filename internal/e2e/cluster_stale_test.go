package e2e

import (
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"codehub/api"
)

// A container's address is given to another workspace while a server hears no events
// and can ask neither the database nor Docker. Its stale route reaches neither the IDE
// nor an application of the other workspace.
func TestStaleRouteReachesNoOtherWorkspace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, clusterOptions{servers: 2, bucket: folderBucket(t), settings: []string{"CODEHUB_DELETE_GRACE=0s"}})
	leader := c.awaitLeader()
	deaf := c.members[0]
	if deaf.server == leader.server {
		deaf = c.members[1]
	}
	gone, other := leader.create(api.CreateWorkspace{Name: "gone"}), leader.create(api.CreateWorkspace{Name: "other"})
	leader.awaitPhase(gone, "RUNNING")
	leader.awaitPhase(other, "RUNNING")
	for _, id := range []string{gone, other} {
		out, err := exec.CommandContext(t.Context(), "docker", "exec", "--detach", "--env", "TESTSERVER_ADDR=:3000", "--env", "HASHED_PASSWORD=", "codehub-ws-"+id, "/testserver").CombinedOutput()
		if err != nil {
			t.Fatalf("start an application: %v: %s", err, out)
		}
	}
	name, address := deaf.containerAddress(gone)
	ports := map[string]string{"the IDE": gone, "a port": "3000--" + gone}
	for what, host := range ports { // the server caches the route and the token
		leader.await(gone, what+" answers", func(api.Workspace) bool {
			status, _ := deaf.get(deaf.originOf(host) + "/echo")
			return status == http.StatusOK
		})
	}

	deaf.dbLink.freeze()
	deaf.dockerLink.freeze()
	defer func() { deaf.dbLink.heal(); deaf.dockerLink.heal() }()
	if _, err := env.docker.ContainerRemove(t.Context(), "codehub-ws-"+gone, client.ContainerRemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := env.docker.NetworkDisconnect(t.Context(), name, client.NetworkDisconnectOptions{Container: "codehub-ws-" + other, Force: true}); err != nil {
		t.Fatal(err)
	}
	_, err := env.docker.NetworkConnect(t.Context(), name, client.NetworkConnectOptions{Container: "codehub-ws-" + other,
		EndpointConfig: &network.EndpointSettings{IPAMConfig: &network.EndpointIPAMConfig{IPv4Address: address}}})
	if err != nil {
		t.Fatal(err)
	}
	for what, host := range ports {
		status, body := deaf.get(deaf.originOf(host) + "/echo")
		t.Logf("%s by the stale route: %d %.80s", what, status, body)
		if status < 400 || strings.Contains(body, "hostname") {
			t.Errorf("the stale route leads to %s of another workspace: %d %s", what, status, body)
		}
	}
	deaf.dbLink.heal()
	deaf.dockerLink.heal()
	leader.remove(gone)
	leader.remove(other)
}

// containerAddress returns the network of a workspace's container and its address there.
func (s *server) containerAddress(id string) (string, netip.Addr) {
	s.Helper()
	got, err := env.docker.ContainerInspect(s.Context(), "codehub-ws-"+id, client.ContainerInspectOptions{})
	if err != nil {
		s.Fatal(err)
	}
	for name, at := range got.Container.NetworkSettings.Networks {
		return name, at.IPAddress
	}
	s.Fatalf("the container of %s has no network", id)
	return "", netip.Addr{}
}

// get sends a request with the token to any of the server's hosts.
func (s *server) get(address string) (int, string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, address, nil)
	if err != nil {
		s.Fatal(err)
	}
	req.Header.Set(api.TokenHeader, s.token)
	resp, err := anyLocalhost.RoundTrip(req)
	if err != nil {
		s.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.Fatal(err)
	}
	return resp.StatusCode, string(b)
}
