// Package cli has the client commands of codehub and the parser of its command
// line. It knows a server only through the API.
package cli

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/alecthomas/kong"
	"golang.org/x/mod/semver"
	"golang.org/x/term"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// Commands are the commands that talk to a server by its API.
type Commands struct {
	Login       loginCmd       `cmd:"" group:"Client:" help:"Log in to a server and remember it."`
	Logout      logoutCmd      `cmd:"" group:"Client:" help:"Log out, and revoke the login's token."`
	Whoami      whoamiCmd      `cmd:"" group:"Client:" help:"Show the current user."`
	Create      createCmd      `cmd:"" group:"Client:" help:"Create a workspace."`
	List        listCmd        `cmd:"" group:"Client:" aliases:"ls" help:"List your workspaces."`
	Show        showCmd        `cmd:"" group:"Client:" help:"Show one workspace."`
	Start       startCmd       `cmd:"" group:"Client:" help:"Start a workspace."`
	Stop        stopCmd        `cmd:"" group:"Client:" help:"Stop a workspace."`
	UpdateImage updateImageCmd `cmd:"" group:"Client:" help:"Update the image at the next start."`
	Restart     restartCmd     `cmd:"" group:"Client:" help:"Stop a workspace and start it again."`
	Stay        stayCmd        `cmd:"" group:"Client:" help:"Reset a workspace's idle timer."`
	Busy        busyCmd        `cmd:"" group:"Client:" help:"Keep this workspace awake during a command."`
	KeepAwake   keepAwakeCmd   `cmd:"" group:"Client:" help:"Keep a workspace awake for a while."`
	Sizes       sizesCmd       `cmd:"" group:"Client:" help:"List the sizes that workspaces may have."`
	Templates   templatesCmd   `cmd:"" group:"Client:" help:"List and manage templates of workspaces."`
	Set         setCmd         `cmd:"" group:"Client:" help:"Change a workspace's settings."`
	Archive     archiveCmd     `cmd:"" group:"Client:" help:"Archive a workspace."`
	Restore     restoreCmd     `cmd:"" group:"Client:" help:"Restore a workspace from an archive or backup."`
	Archives    archivesCmd    `cmd:"" group:"Client:" help:"List a workspace's archives."`
	Checkpoint  checkpointCmd  `cmd:"" group:"Client:" help:"Back up a workspace's home now."`
	Backups     backupsCmd     `cmd:"" group:"Client:" help:"List a workspace's backups."`
	Diff        diffCmd        `cmd:"" group:"Client:" help:"List what changed since a backup."`
	Fork        forkCmd        `cmd:"" group:"Client:" help:"Create workspaces from a backup or an archive."`
	Download    downloadCmd    `cmd:"" group:"Client:" help:"Download an archive, or a file of it."`
	Delete      deleteCmd      `cmd:"" group:"Client:" aliases:"rm" help:"Delete a workspace."`
	Undelete    doCmd          `cmd:"" group:"Client:" help:"Undo a deletion."`
	Recover     recoverCmd     `cmd:"" group:"Client:" help:"Recover a workspace from an error."`
	Cancel      doCmd          `cmd:"" group:"Client:" help:"Cancel the running operation."`
	Open        openCmd        `cmd:"" group:"Client:" help:"Open a workspace in the browser."`
	Exec        execCmd        `cmd:"" group:"Client:" help:"Run a command in a workspace."`
	Cp          cpCmd          `cmd:"" group:"Client:" name:"cp" help:"Copy files to or from a workspace."`
	Setup       setupCmd       `cmd:"" group:"Client:" help:"Show a workspace's setup, or try it again."`
	Environment environmentCmd `cmd:"" group:"Client:" name:"devcontainer" help:"Show or use a repository's devcontainer.json."`
	Logs        logsCmd        `cmd:"" group:"Client:" help:"Print a workspace's container log."`
	Ports       portsCmd       `cmd:"" group:"Client:" help:"List and share a workspace's ports."`
	Share       shareCmd       `cmd:"" group:"Client:" help:"Share a workspace."`
	Unshare     unshareCmd     `cmd:"" group:"Client:" help:"End a share of a workspace."`
	Shares      sharesCmd      `cmd:"" group:"Client:" help:"List who has access to a workspace."`
	HandOver    handOverCmd    `cmd:"" group:"Client:" name:"hand-over" help:"Answer a requested hand-over of a workspace."`
	Shared      sharedCmd      `cmd:"" group:"Client:" help:"List workspaces that others share with you."`
	Leave       leaveCmd       `cmd:"" group:"Client:" help:"Leave a workspace that another user shares."`
	SSH         sshCmd         `cmd:"" group:"Client:" name:"ssh" help:"Open a shell in a workspace by SSH."`
	ConfigSSH   configSSHCmd   `cmd:"" group:"Client:" name:"config-ssh" help:"Add workspaces to OpenSSH's configuration."`
	Keys        keysCmd        `cmd:"" group:"Client:" help:"Manage your SSH keys."`
	Dotfiles    dotfilesCmd    `cmd:"" group:"Client:" help:"Manage your dotfiles."`
	Secret      secretCmd      `cmd:"" group:"Client:" help:"Manage secrets of workspaces."`
	Git         gitCmd         `cmd:"" group:"Client:" help:"Manage your access to Git servers."`
	Tokens      tokensCmd      `cmd:"" group:"Client:" help:"Manage API tokens."`
	Sessions    sessionsCmd    `cmd:"" group:"Client:" help:"Manage your sessions."`
	Identities  identitiesCmd  `cmd:"" group:"Client:" help:"List and unlink logins of identity providers."`
	Passkeys    passkeysCmd    `cmd:"" group:"Client:" help:"List and rename your passkeys."`
	Passwd      passwdCmd      `cmd:"" group:"Client:" help:"Change your password."`
	Users       usersCmd       `cmd:"" group:"Client:" help:"Manage users (administrators)."`
	Groups      groupsCmd      `cmd:"" group:"Client:" help:"Manage groups of users."`
	Images      imagesCmd      `cmd:"" group:"Client:" help:"Manage images (administrators)."`
	Nodes       nodesCmd       `cmd:"" group:"Client:" help:"Confirm dead nodes (administrators)."`
	Admin       adminCmd       `cmd:"" group:"Client:" help:"Manage the workspaces of all users (administrators)."`
	Audit       auditCmd       `cmd:"" group:"Client:" help:"Print the audit log (administrators)."`
	Banner      bannerCmd      `cmd:"" group:"Client:" help:"Show or set the banner."`
	Notices     noticesCmd     `cmd:"" group:"Client:" help:"List your notices."`
	Status      statusCmd      `cmd:"" group:"Client:" help:"Show server status."`

	GitCredential    gitCredentialCmd    `cmd:"" group:"Client:" name:"git-credential" help:"Answer Git in a workspace."`
	PortForward      portForwardCmd      `cmd:"" group:"Client:" name:"port-forward" help:"Forward local ports to a workspace."`
	UpdateTemplate   updateTemplateCmd   `cmd:"" group:"Client:" name:"update-template" help:"Apply a changed template at the next start."`
	ReconcileRestore reconcileRestoreCmd `cmd:"" group:"Client:" name:"reconcile-restore" help:"Reconcile a restored database and take over."`

	Completion completionCmd `cmd:"" group:"Client:" help:"Print a shell completion script."`
}

// serverFlags select the server of a client command. The credential is not a flag,
// because every user of a machine can read the arguments of its programs.
type serverFlags struct {
	URL string `name:"url" env:"CODEHUB_URL" placeholder:"URL" help:"Server address (default: that of the last login, then http://localhost:8080). The credential is CODEHUB_SESSION_TOKEN, or that of the last login."`

	version string // of this program
}

// AfterApply receives the program's version, and lets Run take the client.
func (f *serverFlags) AfterApply(k *kong.Context, vars kong.Vars) error {
	f.version = vars[versionVar]
	return k.BindToProvider(f.connect)
}

func (f serverFlags) userAgent() client.Option {
	return client.WithUserAgent("codehub-cli/" + f.version)
}

const (
	tokenVariable = "CODEHUB_SESSION_TOKEN"
	defaultServer = "http://localhost:8080"
)

// connect returns the client of a command.
func (f serverFlags) connect() (*client.Client, error) {
	known, err := readLogin()
	if err != nil {
		return nil, err
	}
	if f.inside(known) != "" {
		return f.connectInside(insideTimeout)
	}
	server := f.server(known)
	token := os.Getenv(tokenVariable)
	// A token is sent only to the server that issued it.
	if token == "" && sameServer(known.URL, server) {
		token = known.Token
	}
	return client.New(server, token, f.userAgent(), client.WithServerVersion(f.otherVersion(server)))
}

// released matches the versions of releases: a program that was built between two of them has more.
var released = regexp.MustCompile(`^\d+\.\d+\.\d+$`)

// otherVersion returns a function that says once, in a terminal, that the server has another
// version than this client, and where its own client is.
func (f serverFlags) otherVersion(server string) func(string) {
	var once sync.Once
	return func(version string) {
		if version == f.version || !released.MatchString(version) || !released.MatchString(f.version) || !term.IsTerminal(int(os.Stderr.Fd())) {
			return
		}
		once.Do(func() {
			than := "older than the server, which has"
			if semver.Compare("v"+f.version, "v"+version) > 0 {
				than = "newer than the server, which has"
			}
			fmt.Fprintf(os.Stderr, "codehub: this client has version %s and is %s %s. The server's own client is at %s/computer\n", f.version, than, version, strings.TrimRight(server, "/"))
		})
	}
}

func (f serverFlags) server(known savedLogin) string {
	switch {
	case f.URL != "":
		return f.URL
	case known.URL != "":
		return known.URL
	}
	return defaultServer
}

func sameServer(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// onWorkspace is embedded in the commands on one workspace.
type onWorkspace struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" help:"A workspace's name or id."`
}

// run resolves the workspace, does something with it and prints the outcome.
func (o onWorkspace) run(ctx context.Context, k *kong.Context, deleted bool, do func(c *client.Client, id string) (any, string, error)) error {
	c, err := o.connect()
	if err != nil {
		return err
	}
	w, err := o.find(ctx, c, o.Workspace, deleted)
	if err != nil {
		return err
	}
	out, text, err := do(c, w.ID)
	if err != nil {
		return err
	}
	if now, ok := out.(api.Workspace); ok {
		text += dropped(w, now)
	}
	return o.Print(k.Stdout, out, text)
}
