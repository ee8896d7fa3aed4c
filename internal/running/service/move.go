package service

import (
	"cmp"

	"codehub/api"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// MoveWorkspace is a workspace as a move sees it before it reads it: without the texts and
// variables of its owner.
func MoveWorkspace(w workspace.Workspace) api.MoveWorkspace {
	v := Server{}.View(w)
	out := api.MoveWorkspace{
		ID: v.ID, OwnerID: w.OwnerID, Name: v.Name, ImageRef: v.ImageRef, State: v.State, Phase: v.Phase, Operation: v.Operation,
		DesiredState: v.DesiredState, NextDesiredState: v.NextDesiredState, ErrorReason: v.ErrorReason, ErrorMessage: v.ErrorMessage,
		Progress: v.Progress, ArchiveSize: v.ArchiveSize, InBackup: lifecycle.InBackup(w),
	}
	if lifecycle.Movable(w) {
		out.Version = optional(lifecycle.MoveVersion(w))
	}
	return out
}

// MoveRecord is the record of a workspace that moves. It has only the size and the digest of
// the archive; the caller adds the rest from the .meta.
func MoveRecord(w workspace.Workspace) api.MoveRecord {
	env := w.Env
	if env == nil {
		env = map[string]string{}
	}
	return api.MoveRecord{
		ID: string(w.ID), OwnerID: w.OwnerID, Version: lifecycle.MoveVersion(w), Name: w.Name, Description: w.Description, Memo: w.Memo,
		ImageRef: w.ImageRef, Size: cmp.Or(w.Size, workspace.DefaultSize), Env: env, TimeZone: optional(w.TimeZone), StandbyTTLSeconds: w.StandbyTTL, ArchiveTTLSeconds: w.ArchiveTTL,
		AwakeWhileWorking: w.AwakeWhileWorking, LastAccessAt: utc(w.LastAccessAt), LastAccessKind: optional(w.LastAccess),
		CreatedAt: w.CreatedAt.UTC(), Archive: api.MoveArchive{Size: w.ArchiveSize, Digest: w.ArchiveDigest},
	}
}
