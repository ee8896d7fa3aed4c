package service

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// URL is where a workspace is entered: under urlBase, which is CODEHUB_URL.
func URL(urlBase string, id workspace.ID) string {
	return strings.TrimRight(urlBase, "/") + "/w/" + string(id) + "/"
}

// Server is what a server's own settings add to what is shown.
type Server struct {
	URL   string        // CODEHUB_URL
	Grace time.Duration // how long a deletion can be taken back
	TTL   workspace.TTL // the defaults
	Sizes workspace.Sizes
	// TemplateUpdate reports that the template of a workspace has changed; optional.
	TemplateUpdate func(workspace.Workspace) bool
}

// View is a workspace as the API shows it to its owner, without the values of its
// environment variables.
func (s Server) View(w workspace.Workspace) api.Workspace {
	v := api.Workspace{
		ID:                    string(w.ID),
		Name:                  w.Name,
		Description:           w.Description,
		Memo:                  w.Memo,
		ImageRef:              w.ImageRef,
		RunningImageRef:       optional(w.RunningImage),
		PreviousImageRef:      optional(w.PreviousImage),
		Size:                  cmp.Or(w.Size, workspace.DefaultSize),
		SizeWaits:             lifecycle.SizeWaits(w, s.Sizes),
		State:                 string(lifecycle.StateOf(w)),
		Phase:                 string(w.Phase),
		Operation:             string(w.Operation),
		DesiredState:          string(w.DesiredState),
		DesiredCause:          optional(w.DesiredCause),
		NextDesiredState:      optional(string(w.NextDesired)),
		PendingRequest:        optional(w.PendingRequest()),
		RestoreFrom:           restoreFrom(w),
		RestoredFrom:          optional(workspace.BackupOfKey(w.ArchiveKey)),
		URL:                   URL(s.URL, w.ID),
		ArchiveKey:            optional(w.ArchiveKey),
		Conditions:            make(map[string]api.Condition, 4),
		ErrorReason:           optional(string(w.ErrorReason)),
		ErrorMessage:          optional(w.ErrorMessage),
		ErrorCount:            w.ErrorCount,
		LastAccessAt:          utc(w.LastAccessAt),
		LastAccessKind:        optional(w.LastAccess),
		StopReason:            optional(w.StopReason),
		KeepAwakeUntil:        utc(w.KeepAwakeTil),
		AwakeWhileWorking:     w.AwakeWhileWorking,
		PhaseChangedAt:        w.PhaseChangedAt.UTC(),
		StandbyTTLSeconds:     w.StandbyTTL,
		ArchiveTTLSeconds:     w.ArchiveTTL,
		BackupIntervalSeconds: w.BackupInterval,
		BackupKeep:            optional(w.BackupKeep),
		EnvWaits:              lifecycle.EnvWaits(w),
		TimeZone:              optional(w.TimeZone),
		Repositories:          repositoriesOf(w.Project),
		Scripts:               scriptsOf(w.Project),
		Extensions:            extensionsOf(w.Project),
		Ports:                 Ports(w.Project),
		RequiredSecrets:       secretsOf(w.Project),
		CreatedAt:             w.CreatedAt.UTC(),
		UpdatedAt:             w.UpdatedAt.UTC(),
		DeletedAt:             utc(w.DeletedAt),
	}
	if pin := w.ImagePin; pin != nil && pin.Ref == w.ImageRef {
		v.ImageDigest, v.ImageID, v.ImageNotice = optional(pin.Digest), optional(pin.ID), optional(pin.Note)
	}
	if p := w.Project; p != nil && p.Devcontainer != nil {
		v.Devcontainer = &api.WorkspaceDevcontainer{File: p.Devcontainer.File, Digest: p.Devcontainer.Digest}
	}
	if use := w.Template; use != nil {
		v.Template = &api.WorkspaceTemplate{Name: use.Name, Version: use.Version, UpdateAvailable: s.TemplateUpdate != nil && s.TemplateUpdate(w)}
		if use.Previous != nil {
			v.Template.PreviousVersion = &use.Previous.Version
		}
	}
	v.ImageUpdateAvailable, v.ImageUpdateRequested = lifecycle.UpdateAvailable(w), lifecycle.UpdateWaits(w)
	if w.ArchiveKey != "" && !workspace.SharedArchive(w.ID, w.ArchiveKey) {
		v.ArchiveSize = &w.ArchiveSize
	}
	space := lifecycle.SpaceOf(w, s.Sizes)
	v.HomeLimitBytes, v.HomeLimitEnforced = space.Limit, space.Enforced
	if space.Measured {
		v.HomeBytes = &space.Used
	}
	if w.Progress != nil {
		p := w.Progress
		v.Progress = &api.Progress{
			Step: p.Step, Detail: p.Detail, Done: p.Done, Total: p.Total,
			Entries: p.Entries, EntriesTotal: p.EntriesTotal, Rate: p.Rate, SecondsLeft: p.SecondsLeft,
			Steps: make([]api.ProgressStep, 0, len(p.Steps)),
		}
		for _, s := range p.Steps {
			v.Progress.Steps = append(v.Progress.Steps, api.ProgressStep{Step: s.Step, BeganAt: s.BeganAt.UTC(), Done: s.Done})
		}
	}
	for t, c := range w.Conditions {
		v.Conditions[string(t)] = api.Condition{Status: c.Status, Reason: c.Reason, Message: c.Message, LastTransitionTime: c.LastTransitionTime.UTC()}
	}
	if at, ok := lifecycle.EndsAt(w, s.TTL); ok {
		v.StopsAt = utc(&at)
	}
	if at, ok := lifecycle.PurgeAt(w, s.Grace); ok && lifecycle.Restorable(w, false) {
		v.PurgedAt = utc(&at)
	}
	return v
}

// Edit returns the changes of texts in a request.
func Edit(in api.UpdateWorkspace) workspace.Edit {
	return workspace.Edit{Name: in.Name, Description: in.Description, Memo: in.Memo}
}

// Archives are the generations of a workspace, newest first, as the API shows
// them to its owner.
func Archives(w workspace.Workspace, list []workspace.Archive) api.ArchiveList {
	out := api.ArchiveList{Archives: make([]api.Archive, 0, len(list))}
	for _, a := range list {
		out.Archives = append(out.Archives, api.Archive{
			OpID: a.OpID, CreatedAt: a.CreatedAt.UTC(), Size: a.Size, Entries: a.Entries, Skipped: a.Skipped, Digest: a.Digest,
			Current: a.Key == w.ArchiveKey, Found: a.Found,
		})
	}
	slices.SortStableFunc(out.Archives, func(a, b api.Archive) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return out
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}
