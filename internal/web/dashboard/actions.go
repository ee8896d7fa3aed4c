package dashboard

import (
	"slices"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// offer sets the actions that the owner can take in v's state. Every state has one, so no
// workspace is stuck.
func (v *view) offer() {
	path := "/workspaces/" + v.ID
	post := func(key, icon string) action { return action{Key: key, Icon: icon, Post: path + "/" + key} }
	dialog := func(key, icon string, danger bool) action {
		return action{Key: key, Icon: icon, Dialog: path + "/" + key, Danger: danger}
	}
	open := action{Key: "open", Icon: "open", Href: v.URL, NewTab: true}
	terminal := action{Key: "terminal", Icon: "terminal", Href: path + "/terminal", NewTab: true}
	start, stop := post("start", "play"), post("stop", "stop")
	thenStart := start // after the running operation
	thenStart.Label = "then_start"
	keep := action{Key: "stay_stopped", Icon: "x", Post: path + "/stop"}
	cancel, undelete := post("cancel", "x"), post("undelete", "undo")
	forceStop := dialog("force-stop", "bolt", true)
	archive := dialog("archive", "box", false)
	stay := action{Key: "stay_archived", Icon: "x", Post: path + "/archive"}
	unarchive := action{Key: "no_archive", Icon: "x", Post: path + "/stop"}
	archiving := v.Queued == string(workspace.DesiredArchived)

	if v.Deleted {
		if v.Problem != nil && v.Problem.Final {
			retry := post("delete", "retry")
			retry.Key = "delete_again"
			v.Problem.Actions = []action{retry}
		}
		if !v.RestoreUntil.IsZero() {
			v.Primary = &undelete
		}
		return
	}

	image := dialog("image", "pencil", false)
	menu := func(more ...action) {
		edits := []action{dialog("edit", "pencil", false)}
		if v.Phase == workspace.PhasePending || lifecycle.ImageBlocks(v.W) {
			edits = append(edits, image)
		}
		v.Menu = slices.Concat(more, edits, []action{dialog("timeouts", "hourglass", false), dialog("delete", "trash", true)})
	}
	menu()
	if v.Problem != nil && !v.Problem.Final && v.Problem.Key == string(workspace.ErrImageNotAllowed) {
		v.Problem.Actions = []action{anotherImage(path)}
	}
	if v.Phase == workspace.PhaseError && v.Operation == workspace.OpNone {
		v.offerInError()
		return
	}
	if v.Operation == workspace.OpNone {
		switch v.State {
		case "running":
			v.Primary, v.Actions = &open, []action{stop}
			menu(slices.Concat([]action{terminal, dialog("restart", "retry", false)}, v.offerKeepAwake(), v.offerArchive(archive))...)
		case "stopped":
			v.Primary, v.Actions = &open, []action{start}
			if v.AwaitsLimit() {
				v.Actions = []action{keep}
			}
			more := append([]action{terminal}, v.offerArchive(archive)...)
			if keptAwake(v.W, v.Now) {
				more = append(v.offerKeepAwake(), more...)
			}
			menu(more...)
		case "archived":
			// Opens the loading page, which shows the progress of the restore.
			reopen := action{Key: "restore_open", Icon: "open", Post: path + "/start", NewTab: true}
			v.Primary, v.Actions = &reopen, []action{post("restore", "undo")}
		case "pending":
			v.Primary = &start
		case "stopping":
			// RUNNING with a stop requested that is not claimed yet.
			v.Actions = []action{start}
			if archiving {
				v.Actions = []action{start, unarchive}
			}
			menu(forceStop)
		case "archiving":
			// STANDBY with an archive requested that is not claimed yet.
			v.Actions = []action{start, unarchive}
		case "restoring":
			v.Actions = []action{stay}
		default:
			// A start that is not claimed yet: it waits for a retry, the running limit or
			// Docker.
			v.Actions = []action{stop}
			if v.W.DesiredState == workspace.DesiredArchived {
				v.Actions = []action{start}
			}
		}
		return
	}

	switch v.Operation {
	case workspace.OpStarting:
		v.Actions = []action{cancel}
		menu(forceStop)
	case workspace.OpProvisioning:
		if v.Queued == string(workspace.DesiredRunning) {
			keep.Key = "no_start"
			v.Actions = []action{keep, cancel}
		} else {
			v.Actions = []action{thenStart, cancel}
		}
	case workspace.OpRestoring:
		v.Actions = []action{thenStart, cancel}
		if v.Queued == string(workspace.DesiredRunning) {
			keep.Key, keep.Post = "no_start", path+"/restore"
			v.Actions = []action{keep, cancel}
		}
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		first := thenStart
		if v.Queued == string(workspace.DesiredRunning) || v.Queued == string(workspace.DesiredStandby) {
			first = stay
		}
		v.Actions = []action{first}
		if lifecycle.Cancellable(v.W) {
			cancel.Key = "stop_archiving"
			v.Actions = append(v.Actions, cancel)
		}
	case workspace.OpStopping:
		v.Actions = []action{thenStart}
		switch {
		case v.Queued == string(workspace.DesiredRunning):
			v.Actions = []action{keep}
		case archiving:
			v.Actions = []action{thenStart, unarchive}
		}
		menu(forceStop)
	case workspace.OpDeleting:
		v.Menu = nil
	}
	if v.Request == "cancel" {
		v.Actions = nil
	}
}

// offerArchive offers to archive: as a button of its own on the workspace's page, elsewhere as
// the menu item that it returns.
func (v *view) offerArchive(archive action) []action {
	switch {
	case v.From == fromDetail:
		v.ToArchive = &archive
		return nil
	}
	return []action{archive}
}

// offerKeepAwake offers to keep a workspace awake that its idle timeout would stop, in the same
// places as offerArchive.
func (v *view) offerKeepAwake() []action {
	keep := action{Key: "keep-awake", Icon: "clock", Dialog: "/workspaces/" + v.ID + "/keep-awake"}
	switch {
	case v.Life.At.IsZero():
		return nil
	case v.From == fromDetail:
		v.KeepAwake = &keep
		return nil
	}
	return []action{keep}
}

// anotherImage is the way out of a problem of the image, where the menu has the action image.
func anotherImage(path string) action {
	return action{Key: "recover_image", Icon: "pencil", Dialog: path + "/image"}
}

// offerInError sets the actions of a workspace in ERROR, by its problem.
func (v *view) offerInError() {
	path := "/workspaces/" + v.ID
	again := action{Key: "recover", Icon: "retry", Post: path + "/recover"}
	stop := action{Key: "stop", Icon: "stop", Dialog: path + "/force-stop"}
	remove := action{Key: "delete", Icon: "trash", Dialog: path + "/delete", Danger: true}
	empty := action{Key: "start-empty", Icon: "sparkle", Dialog: path + "/start-empty", Danger: true}

	out := []action{again}
	if lifecycle.ImageBlocks(v.W) {
		out = append(out, anotherImage(path))
	}
	if v.W.Obstructed() {
		out = append(out, action{Key: "set-aside", Icon: "box", Dialog: path + "/set-aside"})
	}
	if v.Problem.Key == vanishing {
		out[0] = action{Key: "open", Icon: "open", Href: v.URL, NewTab: true}
	}
	if v.Problem.Key == volumeKept {
		out[0].Key = "recover_kept"
	}
	if v.Lost() {
		// codehub never replaces lost data automatically: the data returns, or the owner
		// confirms the loss.
		switch v.Problem.Key {
		case string(workspace.ErrDataLost):
			out[0].Key = "recover_volume"
		case archiveMissing:
			out[0].Key = "recover_object"
		}
		out = append(out, action{Key: "recover-archive", Icon: "undo", Dialog: path + "/recover-archive"}, empty)
	}
	if v.W.Conditions.HasContainer() {
		out = append(out, stop)
	}
	v.Problem.Actions = append(out, remove)
	v.Menu = []action{{Key: "edit", Icon: "pencil", Dialog: path + "/edit"}, {Key: "image", Icon: "pencil", Dialog: path + "/image"}, {Key: "timeouts", Icon: "hourglass", Dialog: path + "/timeouts"}}
	if v.Request == "recover" || v.Request == "set_aside" {
		v.Problem.Actions = []action{remove}
	}
}
