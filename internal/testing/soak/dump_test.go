package soak

import (
	"context"
	"encoding/json"
	"time"

	"github.com/moby/moby/client"
)

// dump writes Docker's view of a workspace to the log: its containers as listed
// and inspected, their processes, and its volumes.
func (w *world) dump(id string) {
	ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
	defer cancel()
	put := func(what string, v any, err error) {
		text, _ := json.Marshal(v)
		w.note("dump: %s: %s (%v)", what, text, err)
	}
	mine := client.Filters{}.Add("label", "codehub.workspace="+id)
	list, err := w.docker.ContainerList(ctx, client.ContainerListOptions{All: true})
	put("containers", list.Items, err)
	for _, c := range list.Items {
		found, err := w.docker.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
		put("container "+c.ID, found.Container, err)
		top, err := w.docker.ContainerTop(ctx, c.ID, client.ContainerTopOptions{})
		put("processes of "+c.ID, top, err)
	}
	volumes, err := w.docker.VolumeList(ctx, client.VolumeListOptions{Filters: mine})
	put("volumes", volumes.Items, err)
	home, err := w.docker.VolumeInspect(ctx, "ws-"+id+"-home", client.VolumeInspectOptions{})
	put("home", home.Volume, err)
	holders, err := w.docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("volume", "ws-"+id+"-home")})
	put("users of the home", holders.Items, err)
}
