package helper

// Command is the subcommand of the codehub executable that runs the helper on
// Docker's host.
const Command = "host-helper"

// The helper's commands; see docker.HelperMain.
const (
	CmdWall         = "wall"
	CmdRemoveWall   = "remove-wall"
	CmdRemoveHome   = "remove-home"
	CmdEmptyHome    = "empty-home"
	CmdIsEmpty      = "is-empty"
	CmdOwnHome      = "own-home"
	CmdSync         = "sync"
	CmdCount        = "count"
	CmdUserMap      = "user-map"
	CmdFingerprint  = "fingerprint"
	CmdInstallAgent = "install-agent"
	CmdInstallIDE   = "install-ide"
)
