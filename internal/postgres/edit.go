package postgres

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// NewWorkspace holds the values of a new workspace.
type NewWorkspace struct {
	Name           string
	Description    string
	Memo           string
	ImageRef       string
	Size           string // one that is offered; empty: the default one
	StorageBackend string
	Desired        workspace.DesiredState
	Queued         workspace.DesiredState // applied when the running limits allow; empty: none
	QueueAtLimit   bool                   // queue a start that the running limits refuse
	StandbyTTL     *int                   // seconds; nil = the server's default, 0 = never
	ArchiveTTL     *int
	Env            map[string]string  // valid variables; see package environ
	TimeZone       string             // empty: unknown
	Project        *workspace.Project // a valid one; nil: none
	// AwakeWhileWorking: processes that are at work count as activity.
	AwakeWhileWorking bool
	// Template is the one that the values above are from; nil: none.
	Template       *workspace.TemplateUse
	BackupInterval *int   // seconds; nil = the server's, 0 = none
	BackupKeep     string // a valid rule; empty: the server's
}

// CreateWorkspace adds a workspace of the caller. CodeNameTaken; CodeLimitExceeded, and nothing
// is added, if its desired state is RUNNING and a running limit is reached, unless QueueAtLimit;
// CodeImageNotAllowed.
func (db *DB) CreateWorkspace(ctx context.Context, caller workspace.Caller, n NewWorkspace) (workspace.Workspace, error) {
	if !workspace.ValidID(caller.UserID) {
		return workspace.Workspace{}, forbidden()
	}
	made, err := uuid.NewV7()
	if err != nil {
		return workspace.Workspace{}, fmt.Errorf("make an id: %w", err)
	}
	if err := notAllowed(db.images.Check(n.ImageRef, caller.UserID)); err != nil {
		return workspace.Workspace{}, err
	}
	if err := lifecycle.CheckSize(n.Size, db.sizes); err != nil {
		return workspace.Workspace{}, err
	}
	id := workspace.ID(made.String())
	var w workspace.Workspace
	err = db.tx(ctx, "create a workspace", func(tx pgx.Tx) error {
		if n.Desired == workspace.DesiredRunning {
			if err := lockLimits(ctx, tx); err != nil {
				return err
			}
			err := db.checkLimits(ctx, tx, caller.UserID, id)
			if n.QueueAtLimit && workspace.CodeOf(err) == workspace.CodeLimitExceeded {
				n.Desired, n.Queued, err = workspace.DesiredStandby, workspace.DesiredRunning, nil
			}
			if err != nil {
				return err
			}
		}
		err := lockUser(ctx, tx, caller.UserID)
		if err == nil {
			err = db.checkWorkspaces(ctx, tx, caller.UserID)
		}
		if err != nil {
			return err
		}
		if w, err = insertWorkspace(ctx, tx, caller, id, n); err != nil {
			return err
		}
		details := map[string]any{"name": w.Name, "desired_state": w.DesiredState}
		if len(n.Env) > 0 {
			details["env"] = slices.Sorted(maps.Keys(n.Env)) // the values may be secrets
		}
		if n.Project != nil && len(n.Project.Repositories) > 0 {
			var addresses []string
			for _, r := range n.Project.Repositories {
				addresses = append(addresses, r.URL)
			}
			details["repositories"] = addresses
		}
		if n.Template != nil {
			details["template"], details["template_version"] = n.Template.Name, n.Template.Version
		}
		return audit(ctx, tx, caller, AuditCreate, string(id), details)
	})
	return w, err
}

func insertWorkspace(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id workspace.ID, n NewWorkspace) (w workspace.Workspace, err error) {
	env, err := envValue(n.Env)
	if err != nil {
		return w, err
	}
	if n.Project.Empty() {
		n.Project = nil
	}
	project, err := jsonOf(n.Project)
	if err != nil {
		return w, err
	}
	use, err := jsonOf(n.Template)
	if err != nil {
		return w, err
	}
	err = tx.QueryRow(ctx, `
		INSERT INTO workspaces (id, owner_user_id, name, description, memo, image_ref, size, storage_backend,
			desired_state, standby_ttl_seconds, archive_ttl_seconds, next_desired_state, env, time_zone, project, awake_while_working, template,
			backup_interval_seconds, backup_keep)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19) RETURNING `+workspaceColumns,
		id, caller.UserID, n.Name, n.Description, n.Memo, n.ImageRef, nullable(n.Size), n.StorageBackend,
		n.Desired, n.StandbyTTL, n.ArchiveTTL, nullable(n.Queued), env, nullable(n.TimeZone), project, n.AwakeWhileWorking, use,
		n.BackupInterval, nullable(n.BackupKeep)).Scan(workspaceTargets(&w)...)
	switch {
	case violates(err, "workspaces_name"):
		return w, nameTaken(n.Name, err)
	case violates(err, "workspaces_owner"):
		return w, forbidden()
	}
	return w, err
}

// Patch holds changes to a workspace. Fields that are nil or not set stay as they
// are.
type Patch struct {
	workspace.Edit
	Image          *string // a valid reference; see lifecycle.SetImage
	Size           *string // see lifecycle.SetSize
	Env            *lifecycle.EnvChange
	TimeZone       string                  // a valid time zone; empty: unchanged
	StandbyTTL     workspace.Optional[int] // seconds
	ArchiveTTL     workspace.Optional[int] // seconds
	KeepAwakeUntil workspace.Optional[time.Time]
	// AwakeWhileWorking; nil: unchanged.
	AwakeWhileWorking *bool
	Desired           *workspace.DesiredState
	Queue             bool // queue Desired if an operation is running
	QueueAtLimit      bool // queue a start that the running limits refuse
	FreeSpace         bool // Desired is RUNNING to free space over a limit; see lifecycle.MayFree
	// Template updates the workspace to another version of its template: the fields above that it
	// gives are set from it (lifecycle.FollowTemplate).
	Template *workspace.TemplateUse
	// BackupInterval is in seconds; BackupKeep is a valid rule, and empty for the server's.
	BackupInterval workspace.Optional[int]
	BackupKeep     *string
	project        workspace.Optional[workspace.Project] // of Template, or of Devcontainer
	// Devcontainer makes the workspace use the description of a repository, or none: the fields above
	// that it gives are set from it (lifecycle.FollowDevcontainer).
	Devcontainer workspace.Optional[workspace.Devcontainer]
}

// followDevcontainer returns the patch with what the use of p.Devcontainer changes in w. CodeInvalid
// for one that no workspace can use.
func (p Patch) followDevcontainer(w workspace.Workspace) (Patch, error) {
	if w.Project.Empty() {
		return p, workspace.InvalidField("file", "is in no repository of the workspace.")
	}
	c, used := lifecycle.FollowDevcontainer(w, p.Devcontainer.Value)
	project := *w.Project
	project.Devcontainer = used
	p.Image, p.Size, p.Env, p.project = c.Image, c.Size, nil, workspace.Optional[workspace.Project]{Set: true, Value: &project}
	p.BackupInterval, p.BackupKeep = c.BackupInterval, c.BackupKeep
	if len(c.Env) > 0 {
		p.Env = &lifecycle.EnvChange{Set: c.Env}
	}
	return p, project.Check()
}

// AuditDevcontainer is the action of the use of a description of a repository.
const AuditDevcontainer = "workspace.devcontainer"

// devcontainerDetails are those of AuditDevcontainer.
func devcontainerDetails(d *workspace.Devcontainer) map[string]any {
	if d == nil {
		return map[string]any{"file": nil}
	}
	return map[string]any{"file": d.File, "digest": d.Digest}
}

// follow returns the patch with what the update to p.Template changes in w. CodeInvalid if w is not
// of that template.
func (p Patch) follow(w workspace.Workspace) (Patch, error) {
	if w.Template == nil || w.Template.Name != p.Template.Name {
		return p, workspace.InvalidField("template", "is not the one from which the workspace was created.")
	}
	c := lifecycle.FollowTemplate(w, p.Template.Settings)
	p.Image, p.Size, p.StandbyTTL, p.ArchiveTTL, p.Env, p.project = c.Image, c.Size, c.StandbyTTL, c.ArchiveTTL, nil, c.Project
	if len(c.Env) > 0 {
		p.Env = &lifecycle.EnvChange{Set: c.Env}
	}
	return p, p.project.Value.Check()
}

// sameUse reports whether both are the same version with the same parameters.
func sameUse(a, b workspace.TemplateUse) bool {
	a.Previous, b.Previous = nil, nil
	return reflect.DeepEqual(a, b)
}

// useTemplate records in w that it uses the version.
func useTemplate(w *workspace.Workspace, to workspace.TemplateUse) (details map[string]any) {
	from := *w.Template
	from.Previous, to.Previous = nil, &from
	w.Template = &to
	return map[string]any{"template": to.Name, "from": from.Version, "to": to.Version}
}

// PatchWorkspace makes all changes or, on an error, none. CodeNotFound if the workspace is
// deleted; CodeNameTaken; CodeImageNotAllowed for a new image, and for a start with one;
// CodeQuotaExceeded of lifecycle.SetSize, CheckSpace and CheckOwned; for Desired see lifecycle.Desire.
func (db *DB) PatchWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID, p Patch) (workspace.Workspace, error) {
	before := needsNoSlot
	if p.Image != nil || p.Template != nil || p.Devcontainer.Set || p.Desired != nil && *p.Desired == workspace.DesiredRunning {
		before = mayNeedSlot
	}
	w, _, err := db.apply(ctx, caller, id, "change a workspace", before, func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		if err := lifecycle.Present(w); err != nil {
			return lifecycle.Intent{}, err
		}
		p, needsSlot := p, false
		if p.Template != nil {
			var err error
			if p, err = p.follow(w); err != nil {
				return lifecycle.Intent{}, err
			}
		}
		if p.Devcontainer.Set {
			var err error
			if p, err = p.followDevcontainer(w); err != nil {
				return lifecycle.Intent{}, err
			}
			if err := audit(ctx, tx, caller, AuditDevcontainer, string(id), devcontainerDetails(p.Devcontainer.Value)); err != nil {
				return lifecycle.Intent{}, err
			}
		}
		edits := p.edit(&w)
		edited := edits != nil || p.Devcontainer.Set
		if edits != nil {
			if err := audit(ctx, tx, caller, AuditChange, string(id), edits); err != nil {
				return lifecycle.Intent{}, err
			}
		}
		if p.Image != nil {
			image, err := lifecycle.SetImage(w, now, *p.Image)
			if err != nil {
				return lifecycle.Intent{}, err
			}
			if image.Changed {
				if err := notAllowed(db.images.Check(*p.Image, w.OwnerID)); err != nil {
					return lifecycle.Intent{}, err
				}
				if image, err = db.orQueued(ctx, tx, w, image, now); err != nil {
					return lifecycle.Intent{}, err
				}
				w, edited, needsSlot = image.Workspace, true, image.NeedsSlot
				if err := audit(ctx, tx, caller, image.Audit.Action, string(id), image.Audit.Details); err != nil {
					return lifecycle.Intent{}, err
				}
			}
		}
		if p.Size != nil {
			size, err := lifecycle.SetSize(w, *p.Size, db.sizes)
			if err != nil {
				return lifecycle.Intent{}, err
			}
			if size.Changed {
				w, edited = size.Workspace, true
				if err := audit(ctx, tx, caller, size.Audit.Action, string(id), size.Audit.Details); err != nil {
					return lifecycle.Intent{}, err
				}
			}
		}
		if p.Env != nil {
			env, err := lifecycle.SetEnv(w, *p.Env)
			if err != nil {
				return lifecycle.Intent{}, err
			}
			if env.Changed {
				w, edited = env.Workspace, true
				if err := audit(ctx, tx, caller, env.Audit.Action, string(id), env.Audit.Details); err != nil {
					return lifecycle.Intent{}, err
				}
			}
		}
		if p.Template != nil && !sameUse(*w.Template, *p.Template) {
			edited = true
			if err := audit(ctx, tx, caller, AuditTemplate, string(id), useTemplate(&w, *p.Template)); err != nil {
				return lifecycle.Intent{}, err
			}
		}
		if p.Desired == nil {
			return lifecycle.Intent{Workspace: w, Changed: edited, NeedsSlot: needsSlot}, nil
		}
		out, err := lifecycle.Desire(w, now, *p.Desired, p.Queue)
		if *p.Desired == workspace.DesiredRunning {
			if out, err = db.startable(w, out, err); err == nil {
				out, err = lifecycle.CheckSpace(w, out, db.sizes, p.FreeSpace, now)
			}
			if err == nil && p.QueueAtLimit {
				out, err = db.orQueued(ctx, tx, w, out, now)
			}
		}
		out.Changed = out.Changed || edited
		return out, err
	})
	return w, err
}

// AuditChange is the action of a change of the fields of a workspace that have no action of their
// own. Its details have the names of the fields, and the values from and to; of the description
// and the notes only the names.
const AuditChange = "workspace.change"

// edit makes the changes that are no intents of package lifecycle. It returns the details of
// AuditChange, nil if nothing changes.
func (p Patch) edit(w *workspace.Workspace) map[string]any {
	before := *w
	p.Apply(w)
	p.StandbyTTL.Apply(&w.StandbyTTL)
	p.ArchiveTTL.Apply(&w.ArchiveTTL)
	p.BackupInterval.Apply(&w.BackupInterval)
	if p.BackupKeep != nil {
		w.BackupKeep = *p.BackupKeep
	}
	if until := p.KeepAwakeUntil; until.Set && !sameTime(until.Value, w.KeepAwakeTil) {
		w.KeepAwakeTil = until.Value
	}
	if p.AwakeWhileWorking != nil {
		w.AwakeWhileWorking = *p.AwakeWhileWorking
	}
	if p.TimeZone != "" {
		w.TimeZone = p.TimeZone
	}
	p.project.Apply(&w.Project)
	var names []string
	for _, t := range workspace.Texts {
		if *t.Current(&before) != *t.Current(w) {
			names = append(names, t.Name)
		}
	}
	from, to := map[string]any{}, map[string]any{}
	if before.Name != w.Name {
		from["name"], to["name"] = before.Name, w.Name
	}
	value := func(name string, unchanged bool, was, is any) {
		if !unchanged {
			names, from[name], to[name] = append(names, name), was, is
		}
	}
	value("standby_ttl_seconds", same(before.StandbyTTL, w.StandbyTTL), before.StandbyTTL, w.StandbyTTL)
	value("archive_ttl_seconds", same(before.ArchiveTTL, w.ArchiveTTL), before.ArchiveTTL, w.ArchiveTTL)
	value("backup_interval_seconds", same(before.BackupInterval, w.BackupInterval), before.BackupInterval, w.BackupInterval)
	value("backup_keep", before.BackupKeep == w.BackupKeep, before.BackupKeep, w.BackupKeep)
	value("keep_awake_until", before.KeepAwakeTil == w.KeepAwakeTil, before.KeepAwakeTil, w.KeepAwakeTil)
	value("awake_while_working", before.AwakeWhileWorking == w.AwakeWhileWorking, before.AwakeWhileWorking, w.AwakeWhileWorking)
	value("time_zone", before.TimeZone == w.TimeZone, before.TimeZone, w.TimeZone)
	if len(names) == 0 {
		return nil
	}
	details := map[string]any{"fields": names}
	if len(from) > 0 {
		details["from"], details["to"] = from, to
	}
	return details
}
