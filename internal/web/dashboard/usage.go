package dashboard

import (
	"context"
	"net/http"
	"time"

	"codehub/internal/running/attach"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Usage measures what running workspaces use (*attach.Attacher). Measuring is no use of a
// workspace, and wakes nothing.
type Usage interface {
	Load(ctx context.Context, id workspace.ID) (attach.Load, error)
}

// usageTimeout limits how long an agent may take to answer.
const usageTimeout = 5 * time.Second

// usageView is what a running workspace uses of its limits. Without Known there is nothing to
// show: it does not run, or its agent does not respond.
type usageView struct {
	Known   bool
	ID      string
	Meters  []meter
	Holders []holder
	Now     time.Time
}

// meter is one of the limits, with the text usage.<Key>.
type meter struct {
	Key         string
	Used, Limit float64 // processors or bytes; a Limit of 0 is none
}

// Bytes reports that the meter counts bytes.
func (m meter) Bytes() bool { return m.Key != "cpu" }

// UsedBytes and LimitBytes are for the texts of bytes.
func (m meter) UsedBytes() int64  { return int64(m.Used) }
func (m meter) LimitBytes() int64 { return int64(m.Limit) }

// holder is a command that holds the workspace awake.
type holder struct {
	What  string
	Since time.Time
}

func usageOf(w workspace.Workspace, l attach.Load, sizes workspace.Sizes, now time.Time) usageView {
	v := usageView{Known: true, ID: string(w.ID), Now: now, Meters: []meter{
		{"cpu", l.CPU, l.CPULimit}, {"memory", float64(l.Memory), float64(l.MemoryLimit)},
	}}
	if home := lifecycle.SpaceOf(w, sizes).OnFileSystem(l.Disk, l.DiskSize); home.Measured {
		v.Meters = append(v.Meters, meter{"home", float64(home.Used), float64(home.Limit)})
	}
	for _, h := range l.Holders {
		v.Holders = append(v.Holders, holder{h.What, time.Unix(h.Since, 0)})
	}
	return v
}

// usage is the part of a workspace's page that shows what it uses.
func (d *Dashboard) usage(w http.ResponseWriter, r *http.Request, c workspace.Caller) {
	ws, err := d.workspaceOf(r.Context(), r, c)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	var v usageView
	if ws.Phase == workspace.PhaseRunning && d.Usage != nil {
		ctx, cancel := context.WithTimeout(r.Context(), usageTimeout)
		defer cancel()
		load, err := d.Usage.Load(ctx, ws.ID)
		if err == nil {
			v = usageOf(ws, load, d.Sizes, d.Now())
		} else {
			d.Log.Debug("measure a workspace failed", "workspace", ws.ID, "err", err)
		}
	}
	d.fragments(w, r, http.StatusOK, part{"resources", v})
}
