package docker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"golang.org/x/net/dns/dnsmessage"

	"codehub/internal/runtime"
)

// askDNS asks Docker's DNS as a program in a container does. It returns the answers, none if
// the name does not exist or the DNS does not answer.
func askDNS(t *testing.T, r *Runtime, up runtime.Upstream, name string, kind dnsmessage.Type) []string {
	t.Helper()
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(strings.TrimSuffix(name, ".") + "."), Type: kind, Class: dnsmessage.ClassINET}},
	}
	packet, err := question.Pack()
	if err != nil {
		return nil // no question in DNS
	}
	var conn net.Conn
	inNamespace(t, fmt.Sprintf("/proc/%d/ns/net", inspectOf(t, r, up).State.Pid), func() { conn, err = net.Dial("udp4", "127.0.0.11:53") })
	check(t, err)
	defer conn.Close()
	must(t)(conn.Write(packet))
	check(t, conn.SetReadDeadline(time.Now().Add(3*time.Second)))
	buffer := make([]byte, 4096)
	n, err := conn.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	check(t, err)
	var answer dnsmessage.Message
	check(t, answer.Unpack(buffer[:n]))
	var out []string
	for _, a := range answer.Answers {
		out = append(out, a.Body.GoString())
	}
	return out
}

// A workspace finds neither names nor addresses of others in Docker's DNS, and a user cannot
// take a name there from others.
func TestDNSHidesWorkspaces(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	spec.Hostname = "gitlab"
	other := startSpec(t, r, spec)
	own := newHome()
	own.Hostname = strings.Repeat("long", 15) + "-24"
	up := startSpec(t, r, own)

	found, err := r.engine.API.ContainerInspect(t.Context(), other.ContainerID, client.ContainerInspectOptions{})
	check(t, err)
	container := found.Container
	end := container.NetworkSettings.Networks[r.engine.Names.Network]
	names := append(slices.Clone(end.Aliases), end.DNSNames...)
	if len(names) == 0 || !strings.HasPrefix(container.Config.Hostname, "gitlab.") {
		t.Fatalf("the names are %q, the host name is %s", names, container.Config.Hostname)
	}
	// What cannot be guessed, or not be asked for.
	secret := regexp.MustCompile(`^((gitlab\.)?[0-9a-f]{12}|[^.]{64,})$`)
	for _, name := range names {
		if !secret.MatchString(name) {
			t.Errorf("another workspace can be asked for as %s", name)
		}
	}
	for _, name := range []string{
		"gitlab", "gitlab." + r.engine.Names.Network, strings.TrimPrefix(container.Name, "/"), strings.TrimPrefix(container.Name, "/") + "." + r.engine.Names.Network,
		spec.Workspace.ContainerName(), string(spec.Workspace), container.ID,
	} {
		if answers := askDNS(t, r, up, name, dnsmessage.TypeA); len(answers) > 0 {
			t.Errorf("%s: %q", name, answers)
		}
	}
	a := end.IPAddress.As4()
	reverse := fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", a[3], a[2], a[1], a[0])
	if answers := askDNS(t, r, up, reverse, dnsmessage.TypePTR); len(answers) > 0 {
		t.Errorf("the address of another workspace has the names %q", answers)
	}
	// The DNS that was asked is Docker's, which knows both by their own names.
	for _, x := range []runtime.Upstream{up, other} {
		if host := inspectOf(t, r, x).Config.Hostname; len(host) > 64 || len(askDNS(t, r, x, host, dnsmessage.TypeA)) != 1 {
			t.Errorf("%s does not find itself", host)
		}
	}
}

// A container of an earlier version has another name. It goes on, and the next one has the
// name of this version.
func TestContainerOfEarlierVersion(t *testing.T) {
	t.Parallel()
	r := newRuntime(t, nil)
	spec := newHome()
	up := startSpec(t, r, spec)
	must(t)(r.engine.API.ContainerRename(t.Context(), up.ContainerID, client.ContainerRenameOptions{NewName: spec.Workspace.ContainerName()}))

	if again, err := r.Upstream(t.Context(), spec.Workspace); err != nil || again != up {
		t.Errorf("upstream %+v, %v, want %+v", again, err, up)
	}
	if c := start(t, r, spec); c.ID != up.ContainerID {
		t.Errorf("another container %s was started, besides %s", c.ID, up.ContainerID)
	}
	check(t, r.RemoveContainer(t.Context(), up.ContainerID, time.Second))
	c := start(t, r, spec)
	found, err := r.engine.API.ContainerInspect(t.Context(), c.ID, client.ContainerInspectOptions{})
	check(t, err)
	if found.Container.Name != "/"+spec.Workspace.DockerName() {
		t.Errorf("the next container is %s", found.Container.Name)
	}
}
