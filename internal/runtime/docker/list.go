package docker

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"strconv"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/workspace"
)

// Containers implements runtime.Runtime.
func (r *Runtime) Containers(ctx context.Context) ([]runtime.Container, error) {
	list, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter(engine.RoleWorkspace)})
	if err != nil {
		return nil, engine.WrapError(ctx, "list containers", err)
	}
	out := make([]runtime.Container, 0, len(list.Items))
	for _, c := range list.Items {
		item := labelled(c.ID, c.Image, c.ImageID, c.Labels, c.State, c.Status)
		var own netip.Addr
		if c.NetworkSettings != nil {
			if e := c.NetworkSettings.Networks[r.engine.Names.Network]; e != nil {
				own = e.IPAddress
				if !own.IsValid() && e.IPAMConfig != nil {
					own = e.IPAMConfig.IPv4Address // created, not started
				}
			}
		}
		if item.State != runtime.ContainerExited {
			r.network.MarkUsed(own)
		}
		if item.State == runtime.ContainerRunning {
			item.Addr = upstreamAddr(own, runtime.IDEPort, publishedIn(c.Ports))
		}
		out = append(out, item)
	}
	return out, nil
}

// upstreamAddr is the address of a port of the container: a published port if there
// is one, or else that of the container's own address.
func upstreamAddr(own netip.Addr, port int, published string) string {
	switch {
	case published != "":
		return net.JoinHostPort("127.0.0.1", published)
	case own.IsValid():
		return net.JoinHostPort(own.String(), strconv.Itoa(port))
	}
	return ""
}

func publishedIn(ports []container.PortSummary) string {
	for _, p := range ports {
		if p.PrivatePort == runtime.IDEPort && p.PublicPort != 0 {
			return strconv.Itoa(int(p.PublicPort))
		}
	}
	return ""
}

// inspected converts an inspection to what Containers returns.
func (r *Runtime) inspected(c container.InspectResponse) runtime.Container {
	out := labelled(c.ID, c.Config.Image, c.Image, c.Config.Labels, c.State.Status, string(c.State.Status))
	if out.State == runtime.ContainerRunning {
		out.Addr = r.reachable(c, runtime.IDEPort)
	}
	return out
}

// reachable returns the address at which the server reaches a port of a running
// container; empty if there is none.
func (r *Runtime) reachable(c container.InspectResponse, port int) string {
	if c.NetworkSettings == nil {
		return ""
	}
	var own netip.Addr
	if e := c.NetworkSettings.Networks[r.engine.Names.Network]; e != nil {
		own = e.IPAddress
	}
	published := ""
	for p, bindings := range c.NetworkSettings.Ports {
		if int(p.Num()) == port && len(bindings) > 0 {
			published = bindings[0].HostPort
		}
	}
	return upstreamAddr(own, port, published)
}

// labelled returns what the labels of a container say. Those of earlier versions have no image, and
// one size.
func labelled(id, name, imageID string, labels map[string]string, state container.ContainerState, detail string) runtime.Container {
	return image.Labelled(runtime.Container{
		ID:        id,
		Workspace: workspace.ID(labels[engine.LabelWorkspace]),
		Claim:     labels[engine.LabelClaim],
		Image:     cmp.Or(labels[engine.LabelImage], name),
		EnvDigest: labels[engine.LabelEnvironment],
		Size:      cmp.Or(labels[engine.LabelSize], workspace.DefaultSize),
		State:     engine.StateOf(state),
		Detail:    detail,
	}, imageID, labels)
}
