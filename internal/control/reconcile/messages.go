package reconcile

import (
	"codehub/internal/runtime"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
)

// Texts that pages show and translate; each is listed in Messages.
const (
	msgCrashed      = "The container exited soon after it was ready (failures in a row: %d). It starts again at %s, or immediately if you stop and start the workspace."
	msgNoRoom       = "This archive needs %d MiB, and %d MiB are available on the disk of the archives."
	msgAsideSince   = "since %s"
	msgAsideSize    = "%d bytes in %d files and folders"
	msgAsidePartial = "possibly a partial copy"
	msgAsideKept    = "kept until an administrator removes it"
)

// Messages lists the texts of conditions and orphans, with verbs for values.
func Messages() []string {
	return []string{
		msgCrashed, msgNoRoom, msgAsideSince, msgAsideSize, msgAsidePartial, msgAsideKept, imageref.MsgNotAllowed, imageref.MsgAllowed,
		runtime.MsgLoginRefused, runtime.MsgLoginNeeded, runtime.MsgPullTooSlow, runtime.MsgPullTooLong,
		workspace.MsgNodeLost, runtime.MsgOutOfMemory,
		runtime.MsgNoPolicies, runtime.MsgPoliciesIgnored, runtime.MsgPoliciesOpen, runtime.MsgReached, runtime.MsgUnreached, runtime.MsgBuildStep,
		runtime.ReachedWorkspace, runtime.ReachedAPI, runtime.ReachedNode, runtime.ReachedMetadata,
		runtime.MsgNodeLogin, runtime.MsgNodeUnreachable, runtime.MsgNoImage, runtime.MsgNoPlatform, runtime.MsgNodePulls, runtime.MsgNotDownloaded,
		runtime.MsgNoRegistry, runtime.MsgNotBuilt, runtime.MsgBuiltGone, runtime.MsgNoDefault, runtime.MsgNoIDE, runtime.MsgNotHere, runtime.MsgNotPulled,
	}
}
