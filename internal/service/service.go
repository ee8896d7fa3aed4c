// Package service holds the interfaces behind the API and the dashboard: what
// both need of the rest of the server.
//
// Every method checks what its caller may do. Errors for people are
// *workspace.Error.
package service

import (
	"context"
	"io"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Workspaces reads and changes a person's workspaces; *postgres.DB implements it.
type Workspaces interface {
	CreateWorkspace(ctx context.Context, caller workspace.Caller, n postgres.NewWorkspace) (workspace.Workspace, error)
	Workspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	ListWorkspaces(ctx context.Context, caller workspace.Caller, f postgres.Filter) (list []workspace.Workspace, cursor string, err error)
	PatchWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, p postgres.Patch) (workspace.Workspace, error)
	DeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, queue bool) (workspace.Workspace, error)
	UndeleteWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	RequestRecover(ctx context.Context, caller workspace.Caller, id workspace.ID, action string) (workspace.Workspace, error)
	// Archives lists the generations that can be downloaded and recovered from.
	Archives(ctx context.Context, caller workspace.Caller, id workspace.ID, page postgres.Page) (list []workspace.Archive, next string, err error)
	Archive(ctx context.Context, caller workspace.Caller, id workspace.ID, opID string) (workspace.Archive, error)
	RequestRecoverArchive(ctx context.Context, caller workspace.Caller, id workspace.ID, archiveOpID string) (workspace.Workspace, error)
	RequestCancel(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	Stop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	RequestForceStop(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	Stay(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	UpdateImage(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	Restart(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
}

// Sharing is the access of others to workspaces; *postgres.DB implements it.
type Sharing interface {
	// Shares, Share and Unshare are for the owner of the workspace.
	Shares(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.Share, error)
	Share(ctx context.Context, caller workspace.Caller, id workspace.ID, n postgres.NewShare) (workspace.Share, error)
	Unshare(ctx context.Context, caller workspace.Caller, id workspace.ID, share string) error
	// SharedWith lists what others share with the caller, SharedWorkspace reads one of them, and
	// Leave ends the caller's access.
	SharedWith(ctx context.Context, caller workspace.Caller) ([]postgres.SharedWorkspace, error)
	SharedWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (postgres.SharedWorkspace, error)
	Leave(ctx context.Context, caller workspace.Caller, id workspace.ID) (groups []string, err error)
	// EnterableWorkspace reads a workspace that the caller may open, as its owner or a guest.
	EnterableWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
}

// SSHKeys keeps the keys with which users log in by SSH; *postgres.DB implements it.
type SSHKeys interface {
	AddSSHKey(ctx context.Context, caller workspace.Caller, k postgres.SSHKey) (postgres.SSHKey, error)
	SSHKeys(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []postgres.SSHKey, next string, err error)
	SSHKey(ctx context.Context, caller workspace.Caller, id string) (postgres.SSHKey, error)
	DeleteSSHKey(ctx context.Context, caller workspace.Caller, id string) error
}

// MoveSource serves moves of workspaces to other installations; *postgres.DB implements it.
// It is for administrators alone, and all but MoveSource only while moves are allowed.
type MoveSource interface {
	MoveSource(ctx context.Context, caller workspace.Caller) (postgres.MoveSource, error)
	WorkspacesToMove(ctx context.Context, caller workspace.Caller, page postgres.Page) (list []workspace.Workspace, next string, err error)
	WorkspaceToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	UserToMove(ctx context.Context, caller workspace.Caller, id string) ([]postgres.Identity, error)
	ArchiveToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	ReadToMove(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	FetchToMove(ctx context.Context, caller workspace.Caller, id workspace.ID, version string) (workspace.Workspace, error)
	DeleteMoved(ctx context.Context, caller workspace.Caller, id workspace.ID, version string) (workspace.Workspace, error)
}

// Logs reads what a workspace's container printed; runtime.Runtime implements it.
type Logs interface {
	Logs(ctx context.Context, id workspace.ID, tail int, follow bool, w io.Writer) error
}

// Groups are groups of users; *admin.Service implements it. Users see the groups that they are in,
// administrators of a group change its members, and those of codehub everything.
type Groups interface {
	Groups(ctx context.Context, caller workspace.Caller, page postgres.Page) (api.GroupList, error)
	Group(ctx context.Context, caller workspace.Caller, id string) (api.Group, error)
	CreateGroup(ctx context.Context, caller workspace.Caller, in api.CreateGroup) (api.Group, error)
	PatchGroup(ctx context.Context, caller workspace.Caller, id string, in api.PatchGroup) (api.Group, error)
	DeleteGroup(ctx context.Context, caller workspace.Caller, id string) error
	Members(ctx context.Context, caller workspace.Caller, id string, page postgres.Page) (api.MemberList, error)
	SetMember(ctx context.Context, caller workspace.Caller, id string, in api.SetMember) (api.Member, error)
	RemoveMember(ctx context.Context, caller workspace.Caller, id, user string) (api.RemovedMember, error)
}

// Admin is for administrators alone, except Groups; *admin.Service implements it.
type Admin interface {
	Groups
	AdminStatus(ctx context.Context, caller workspace.Caller) (api.AdminStatus, error)
	Orphans(ctx context.Context, caller workspace.Caller, page postgres.Page) (api.OrphanList, error)
	RetryImage(ctx context.Context, caller workspace.Caller, name string) (api.ImageBuild, error)
	ConfirmDeadNode(ctx context.Context, caller workspace.Caller, name string) (api.DeadNode, error)
	Accounts(ctx context.Context, caller workspace.Caller, f postgres.AccountFilter) (api.AccountList, error)
	CreateAccount(ctx context.Context, caller workspace.Caller, in api.CreateAccount) (api.Account, error)
	InviteAccount(ctx context.Context, caller workspace.Caller, id string) (api.Account, error)
	ImportAccounts(ctx context.Context, caller workspace.Caller, in api.ImportAccounts) (api.ImportedAccounts, error)
	PatchAccount(ctx context.Context, caller workspace.Caller, id string, in api.PatchAccount) (api.Account, error)
	DeleteAccount(ctx context.Context, caller workspace.Caller, id string, r postgres.Removal) error
	RemovePasskeys(ctx context.Context, caller workspace.Caller, id string) (api.Account, error)
}

// Administration is what administrators see and do of the workspaces of all users, the audit
// log, and the notices by which users learn of it; *postgres.DB implements it. All but the
// methods of notices, Banner, HandOverRequest and AnswerHandOver are for administrators alone.
type Administration interface {
	AnyWorkspaces(ctx context.Context, caller workspace.Caller, f postgres.AnyFilter) (postgres.AnyList, error)
	AnyWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (postgres.AnyWorkspace, error)
	ReadAnyLog(ctx context.Context, caller workspace.Caller, id workspace.ID) (postgres.AnyWorkspace, error)
	AnyArchives(ctx context.Context, caller workspace.Caller, id workspace.ID, page postgres.Page) (list []workspace.Archive, next string, err error)
	Administer(ctx context.Context, caller workspace.Caller, id workspace.ID, do postgres.Administration) (postgres.AnyWorkspace, error)
	HandOver(ctx context.Context, caller workspace.Caller, id workspace.ID, h postgres.HandOver) (postgres.AnyWorkspace, error)
	WithdrawHandOver(ctx context.Context, caller workspace.Caller, id workspace.ID) (postgres.AnyWorkspace, error)
	UsageOf(ctx context.Context, caller workspace.Caller, id workspace.ID, from, through time.Time, each func(postgres.UsageDay) error) error
	Audit(ctx context.Context, caller workspace.Caller, f postgres.AuditFilter) (list []postgres.AuditEntry, next string, err error)
	ExportAudit(ctx context.Context, caller workspace.Caller, f postgres.AuditFilter, begin func(until time.Time), each func(postgres.AuditEntry) error) error
	SetBanner(ctx context.Context, caller workspace.Caller, text string) (postgres.Banner, error)

	HandOverRequest(ctx context.Context, caller workspace.Caller, id workspace.ID) (postgres.HandOverRequest, error)
	AnswerHandOver(ctx context.Context, caller workspace.Caller, id workspace.ID, accept bool) error
	Banner(ctx context.Context) (postgres.Banner, error)
	Notices(ctx context.Context, caller workspace.Caller) ([]postgres.Notice, error)
	DismissNotice(ctx context.Context, caller workspace.Caller, id string) error
}

// Restore compares a restored database with Docker and the bucket, for
// administrators alone; *rollback.Service implements it.
type Restore interface {
	RestorePlan(ctx context.Context, caller workspace.Caller, in api.ApplyRestore, page postgres.Page) (api.RestorePlan, error)
	ApplyRestore(ctx context.Context, caller workspace.Caller, in api.ApplyRestore) (api.RestoreResult, error)
}
