package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/network"
	"codehub/internal/workspace"
)

// Inventory lists the installation's objects.
func (r *Runtime) Inventory(ctx context.Context) (runtime.Inventory, error) {
	inv := runtime.Inventory{}
	containers, err := r.engine.API.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: r.engine.Filter("")})
	if err != nil {
		return inv, engine.WrapError(ctx, "list containers", err)
	}
	held := false // set-aside volumes need the holders' image
	for _, c := range containers.Items {
		role := c.Labels[engine.LabelRole]
		if role == engine.RoleAside {
			held = true
			continue
		}
		name := c.ID
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		inv.Remove = append(inv.Remove, runtime.Item{Kind: "container", Name: name, Detail: role + ", " + string(c.State)})
	}
	volumes, err := r.engine.API.VolumeList(ctx, client.VolumeListOptions{Filters: r.engine.Filter("")})
	if err != nil {
		return inv, engine.WrapError(ctx, "list volumes", err)
	}
	kept := map[string]bool{} // claims of the homes
	for _, v := range volumes.Items {
		if v.Labels[engine.LabelRole] == engine.RoleHome {
			kept[v.Labels[engine.LabelClaim]] = true
		}
	}
	for _, v := range volumes.Items {
		switch role := v.Labels[engine.LabelRole]; {
		case role == engine.RoleHome, role == engine.RoleAside, role == engine.RoleAsideRecord: // below
		case (role == engine.RoleSettled || role == engine.RoleRestored) && kept[v.Labels[engine.LabelClaim]]:
			// Without it there is no proof that the home is complete.
			inv.Homes = append(inv.Homes, runtime.Item{Kind: "record of a home", Name: v.Name, Detail: role})
		default:
			inv.Remove = append(inv.Remove, runtime.Item{Kind: "volume", Name: v.Name, Detail: role})
		}
	}
	networks, err := r.engine.API.NetworkList(ctx, client.NetworkListOptions{Filters: r.engine.Filter("")})
	if err != nil {
		return inv, engine.WrapError(ctx, "list networks", err)
	}
	for _, n := range networks.Items {
		inv.Remove = append(inv.Remove, runtime.Item{Kind: "network", Name: n.Name, Detail: ""})
	}
	images, err := r.engine.API.ImageList(ctx, client.ImageListOptions{Filters: r.engine.Filter("")})
	if err != nil {
		return inv, engine.WrapError(ctx, "list images", err)
	}
	for _, i := range images.Items {
		names := i.RepoTags
		if len(names) == 0 {
			names = []string{i.ID}
		}
		for _, name := range names {
			item := runtime.Item{Kind: "image", Name: name, Detail: i.Labels[engine.LabelRole]}
			if held && i.Labels[engine.LabelRole] == engine.RoleHolder {
				item.Detail = "keeps set-aside volumes from docker volume prune"
				inv.Keep = append(inv.Keep, item)
				continue
			}
			inv.Remove = append(inv.Remove, item)
		}
	}
	for _, n := range r.networks() {
		inv.Remove = append(inv.Remove, runtime.Item{Kind: "nftables table", Name: n.Table(), Detail: "if there is one"})
	}
	homes, err := r.Volumes(ctx)
	if err != nil {
		return inv, err
	}
	for _, v := range homes {
		if v.Foreign {
			continue
		}
		name := v.Workspace.VolumeName()
		if v.Storage == workspace.StorageLocalDir {
			name = r.homes.Folder(v.Workspace)
		}
		inv.Homes = append(inv.Homes, runtime.Item{Kind: "home", Name: name, Detail: v.Storage})
	}
	asides, err := r.Asides(ctx)
	if err != nil {
		return inv, err
	}
	for _, a := range asides {
		inv.Keep = append(inv.Keep, runtime.Item{Kind: "set aside", Name: a.Name, Detail: a.Storage})
	}
	for _, list := range [][]runtime.Item{inv.Remove, inv.Homes, inv.Keep} {
		slices.SortStableFunc(list, func(a, b runtime.Item) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	}
	return inv, nil
}

// Uninstall removes what Inventory lists under Remove and, with homes, the homes,
// and calls gone for each removed item. It continues after errors and returns all
// of them; it may be repeated. No server of this installation may be running.
func (r *Runtime) Uninstall(ctx context.Context, homes bool, gone func(runtime.Item)) error {
	inv, err := r.Inventory(ctx)
	if err != nil {
		return err
	}
	var errs []error
	each := func(kind string, remove func(runtime.Item) error) {
		for _, item := range inv.Remove {
			if item.Kind != kind {
				continue
			}
			if err := remove(item); err != nil {
				errs = append(errs, fmt.Errorf("remove %s %s: %w", kind, item.Name, err))
				continue
			}
			gone(item)
		}
	}
	if !homes {
		if err := r.homes.KeepProofs(ctx); err != nil {
			return err
		}
	}
	each("container", func(i runtime.Item) error { return r.engine.Discard(ctx, i.Name) })
	if homes {
		errs = append(errs, r.removeHomes(ctx, gone))
	}
	each("volume", func(i runtime.Item) error {
		_, err := r.engine.API.VolumeRemove(ctx, i.Name, client.VolumeRemoveOptions{})
		return ignoreNotFound(engine.WrapError(ctx, "remove volume", err))
	})
	each("nftables table", func(i runtime.Item) error {
		at := slices.IndexFunc(r.networks(), func(n *network.Network) bool { return n.Table() == i.Name })
		return r.networks()[at].RemoveWall(ctx)
	})
	each("network", func(i runtime.Item) error {
		_, err := r.engine.API.NetworkRemove(ctx, i.Name, client.NetworkRemoveOptions{})
		return ignoreNotFound(engine.WrapError(ctx, "remove network", err))
	})
	// Last, because the other steps may need the helper. Its image may be newer
	// than the list.
	if inv, err = r.Inventory(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
	each("image", func(i runtime.Item) error {
		_, err := r.engine.API.ImageRemove(ctx, i.Name, client.ImageRemoveOptions{PruneChildren: true})
		return ignoreNotFound(engine.WrapError(ctx, "remove image", err))
	})
	return errors.Join(errs...)
}

// networks are those of workspaces and of builds.
func (r *Runtime) networks() []*network.Network {
	return []*network.Network{r.network, r.builder.Network}
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

func (r *Runtime) removeHomes(ctx context.Context, gone func(runtime.Item)) error {
	homes, err := r.Volumes(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, v := range homes {
		if v.Foreign {
			continue
		}
		if err := r.RemoveVolume(ctx, v.Workspace, v.Claim, nil); err != nil {
			errs = append(errs, fmt.Errorf("remove the home of workspace %s: %w", v.Workspace, err))
			continue
		}
		gone(runtime.Item{Kind: "home", Name: v.Workspace.VolumeName(), Detail: v.Storage})
	}
	return errors.Join(errs...)
}
