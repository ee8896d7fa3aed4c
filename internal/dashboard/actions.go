package dashboard

import "codehub/internal/workspace"

// offer fills in what the owner can do in the state that v shows. Every state
// has a way out (lessons: "a workspace stuck for days with no button").
func (v *view) offer() {
	path := "/workspaces/" + v.ID
	post := func(key, icon string) action { return action{Key: key, Icon: icon, Post: path + "/" + key} }
	dialog := func(key, icon string, danger bool) action {
		return action{Key: key, Icon: icon, Dialog: path + "/" + key, Danger: danger}
	}
	open := action{Key: "open", Icon: "open", Href: v.URL, NewTab: true}
	start, stop := post("start", "play"), post("stop", "stop")
	keep := action{Key: "stay_stopped", Icon: "x", Post: path + "/stop"}
	cancel, undelete := post("cancel", "x"), post("undelete", "undo")
	forceStop := dialog("force-stop", "bolt", true)
	edit, remove := dialog("edit", "pencil", false), dialog("delete", "trash", true)

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

	v.Menu = []action{edit, remove}
	if v.Phase == workspace.PhaseError && v.Operation == workspace.OpNone {
		v.offerInError()
		return
	}
	if v.Operation == workspace.OpNone {
		switch v.State {
		case "running":
			v.Primary, v.Actions = &open, []action{stop}
		case "stopped":
			v.Primary, v.Actions = &open, []action{start}
		case "archived":
			restore := start
			restore.Key, restore.Icon = "restore", "undo"
			v.Primary = &restore
		case "pending":
			v.Primary = &start
		case "stopping":
			// RUNNING, asked to stop and not claimed yet.
			v.Actions = []action{start}
			v.Menu = []action{edit, forceStop, remove}
		default:
			// On its way up and not claimed yet: waiting for a retry, for
			// room, or for the backend to answer.
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
		v.Menu = []action{edit, forceStop, remove}
	case workspace.OpProvisioning:
		// It cannot be ended halfway; what comes after it can be chosen.
		if v.Queued == string(workspace.DesiredRunning) {
			keep.Key = "no_start"
			v.Actions = []action{keep}
		} else {
			v.Actions = []action{start}
		}
	case workspace.OpRestoring:
		v.Actions = []action{cancel}
	case workspace.OpArchiving, workspace.OpCreateEmptyArchive:
		v.Actions = []action{start}
		if v.Operation == workspace.OpArchiving && v.W.Home.State != workspace.HomeRemoving && v.W.CancelRequestedAt == nil {
			v.Actions = []action{start, cancel}
		}
		if v.Queued == string(workspace.DesiredRunning) {
			v.Actions = nil
		}
	case workspace.OpStopping:
		v.Actions = []action{start}
		if v.Queued == string(workspace.DesiredRunning) {
			v.Actions = []action{keep}
		}
		v.Menu = []action{edit, forceStop, remove}
	case workspace.OpDeleting:
		v.Menu = nil
	}
	if v.Request == "cancel" {
		v.Actions = nil
	}
}

// offerInError lists the ways out of ERROR beside the problem itself.
func (v *view) offerInError() {
	path := "/workspaces/" + v.ID
	again := action{Key: "recover", Icon: "retry", Post: path + "/recover"}
	stop := action{Key: "stop", Icon: "stop", Dialog: path + "/force-stop"}
	remove := action{Key: "delete", Icon: "trash", Dialog: path + "/delete", Danger: true}
	empty := action{Key: "start-empty", Icon: "sparkle", Dialog: path + "/start-empty", Danger: true}

	out := []action{again}
	switch v.Problem.Key {
	case string(workspace.ErrDataLost):
		// Nothing is made up by itself: the volume comes back, or its owner
		// gives it up in words (design §2).
		out[0].Key = "recover_volume"
		out = append(out, empty)
	case string(workspace.ErrArchiveCorrupted):
		out = append(out, empty)
	}
	if v.W.Conditions.HasContainer() {
		out = append(out, stop)
	}
	v.Problem.Actions = append(out, remove)
	v.Menu = []action{{Key: "edit", Icon: "pencil", Dialog: path + "/edit"}}
	if v.Request == "recover" {
		v.Problem.Actions = []action{remove}
	}
}
