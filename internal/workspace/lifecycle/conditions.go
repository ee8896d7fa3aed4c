package lifecycle

import (
	"cmp"
	"fmt"

	"codehub/internal/workspace"
)

// Conditions turns an observation into the row's next conditions.
func Conditions(in Input) workspace.Conditions {
	c := in.Row.Conditions
	if in.Obs.VolumeKnown {
		ok, reason, msg := volumeReady(in.Row.Home, in.Obs.Volume)
		c = c.With(workspace.VolumeReady, ok, reason, msg, in.Now)
	}
	switch {
	case in.Row.ArchiveKey == "":
		c = c.With(workspace.ArchiveReady, false, workspace.ReasonNoArchive, "", in.Now)
	case in.Obs.Archive == ArchivePresent:
		c = c.With(workspace.ArchiveReady, true, workspace.ReasonArchiveReady, in.Row.ArchiveKey, in.Now)
	case in.Obs.Archive == ArchiveMissing:
		c = c.With(workspace.ArchiveReady, false, workspace.ReasonArchiveMissing, in.Row.ArchiveKey, in.Now)
	case in.Obs.Archive == ArchiveCorrupted:
		c = c.With(workspace.ArchiveReady, false, workspace.ReasonArchiveCorrupted, in.Row.ArchiveKey, in.Now)
	case !archiveSeen(in.Row):
		// The last result is about another archive.
		c = c.With(workspace.ArchiveReady, false, workspace.ReasonNotObserved, "", in.Now)
	}
	if in.Obs.ContainerKnown {
		ok, reason, msg := containerReady(in.Row, in.Obs.Container)
		c = c.With(workspace.ContainerReady, ok, reason, msg, in.Now)
	}
	reason, msg := broken(in.Row, c)
	if reason == "" {
		return c.With(workspace.Healthy, true, workspace.ReasonHealthy, "", in.Now)
	}
	return c.With(workspace.Healthy, false, string(reason), msg, in.Now)
}

// incomplete is the reason of a volume that is never ready in a home's state.
var incomplete = map[workspace.HomeState]string{
	workspace.HomeFilling:    workspace.ReasonFilling,
	workspace.HomeDiscarding: workspace.ReasonDiscarding,
	workspace.HomeDeleting:   workspace.ReasonRemoving,
}

func volumeReady(home workspace.Home, v *Volume) (ok bool, reason, message string) {
	if v == nil {
		return false, workspace.ReasonNoVolume, ""
	}
	ours := v.Claim != "" && v.Claim == home.Claim
	switch home.State {
	case workspace.HomeLive, workspace.HomeArchived:
		switch {
		case !ours:
			return false, workspace.ReasonForeignVolume, msgForeignVolume
		case home.State == workspace.HomeArchived && !v.Complete(), v.Removing:
			// Removal deletes what marks a volume as complete before its content.
			if v.Lost {
				return false, workspace.ReasonRemoving, msgVolumeLost
			}
			return false, workspace.ReasonRemoving, ""
		}
		return true, workspace.ReasonVolumeReady, ""
	case workspace.HomeFilling, workspace.HomeDiscarding, workspace.HomeDeleting:
		if !ours {
			return false, workspace.ReasonForeignVolume, msgForeignVolume
		}
		return false, incomplete[home.State], ""
	}
	return false, workspace.ReasonUnowned, msgUnownedVolume
}

// containerReady: a start is complete when /healthz answers. Afterwards a running
// container stays ready, so that a slow /healthz ends no session. A container on a
// home that is being removed is not ready.
func containerReady(row workspace.Workspace, k *Container) (ok bool, reason, message string) {
	switch {
	case k == nil:
		return false, workspace.ReasonNoContainer, ""
	case k.State == Exited:
		return false, workspace.ReasonContainerExited, cmp.Or(lostNode(k), k.Detail)
	case k.State == Created:
		if row.Operation == workspace.OpStarting {
			return false, workspace.ReasonContainerStarting, ""
		}
		return false, workspace.ReasonContainerExited, k.Detail
	case row.Home.State.Removable(), row.Home.State == workspace.HomeDeleting:
		return false, workspace.ReasonContainerStarting, msgHomeRemoved
	case k.LostNode != "":
		// It stays what it is: the cluster decides whether it has ended.
		return row.Conditions.Is(workspace.ContainerReady), workspace.ReasonNodeUnreachable, lostNode(k)
	case k.Answers || row.Conditions.Is(workspace.ContainerReady):
		return true, workspace.ReasonContainerReady, ""
	}
	return false, workspace.ReasonContainerStarting, ""
}

// lostNode is the message about a container whose node does not respond; empty otherwise.
func lostNode(k *Container) string {
	if k.LostNode == "" {
		return ""
	}
	return fmt.Sprintf(workspace.MsgNodeLost, k.LostNode)
}

// broken is the reason why policy.healthy is false, or empty. A deleted workspace has
// nothing to lose.
func broken(row workspace.Workspace, c workspace.Conditions) (workspace.ErrorReason, string) {
	if row.DeletedAt != nil {
		return "", ""
	}
	volume := c.Get(workspace.VolumeReady)
	container := c.Get(workspace.ContainerReady)
	archive := c.Get(workspace.ArchiveReady)
	observed := volume.Reason != workspace.ReasonNotObserved

	runs := container.Reason == workspace.ReasonContainerReady || container.Reason == workspace.ReasonContainerStarting || container.Reason == workspace.ReasonNodeUnreachable
	if runs && homeGoes(row, c) {
		return workspace.ErrContainerWithoutVolume, cmp.Or(volume.Message, fmt.Sprintf(msgHomeGoes, row.ID.VolumeName()))
	}
	if runs && observed && !volume.True() {
		return workspace.ErrContainerWithoutVolume, msgRunsWithoutHome
	}
	switch row.Home.State {
	case workspace.HomeLive:
		switch volume.Reason {
		case workspace.ReasonNoVolume:
			return workspace.ErrDataLost, fmt.Sprintf(msgVolumeMissing, row.ID.VolumeName())
		case workspace.ReasonForeignVolume:
			return workspace.ErrDataLost, fmt.Sprintf(msgVolumeReplaced, row.ID.VolumeName())
		case workspace.ReasonRemoving:
			return workspace.ErrDataLost, cmp.Or(volume.Message, fmt.Sprintf(msgVolumePartial, row.ID.VolumeName()))
		}
	default:
		kept := ""
		if row.Home.State == workspace.HomeArchived && volume.True() {
			kept = fmt.Sprintf(msgVolumeKept, row.ID.VolumeName())
		}
		switch archive.Reason {
		case workspace.ReasonArchiveMissing:
			return workspace.ErrDataLost, sentences(fmt.Sprintf(msgArchiveMissing, row.ArchiveKey), kept)
		case workspace.ReasonArchiveCorrupted:
			return workspace.ErrArchiveCorrupted, sentences(fmt.Sprintf(msgArchiveDamaged, row.ArchiveKey), kept)
		}
	}
	return "", ""
}
