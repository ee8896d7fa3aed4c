package postgres

import (
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"codehub/internal/workspace"
)

// writer is the part of codehub that changes a column after the creation of a workspace.
type writer int

const (
	noWriter   writer = iota // set at creation, computed, or changed by a trigger
	controller               // the leader, in Controller.Apply
	apiLayer                 // an intent, in saveWorkspace
)

// column describes one column of a workspace. All SELECTs, scans, UPDATEs and comparisons of
// whole workspaces are derived from the descriptions, so a new column is one line here, or one of
// workspace.Texts, one field in workspace.Workspace and a migration.
type column struct {
	name string
	by   writer
	// field returns the scan target of the column. Unless value is set, the column is also
	// written from it.
	field func(w *workspace.Workspace) any
	value func(w *workspace.Workspace) (any, error)
	// expr is the SQL expression of a column that is computed when it is read.
	expr string
	// skipTick: a tick does not read it; only the API and the idle timeouts need it.
	skipTick bool
	// claim: a claim compares it (Change.Claim).
	claim bool
	// quiet: its changes do not update updated_at.
	quiet bool
	// also is a further assignment when the column changes.
	also string
}

// orEmpty scans NULL as "", and writes "" as NULL.
func orEmpty(s *string) *zeronull.Text { return (*zeronull.Text)(s) }

type row = workspace.Workspace

var columns = append(textColumns(), []column{
	{name: "id", field: func(w *row) any { return &w.ID }},
	{name: "owner_user_id", by: apiLayer, claim: true, field: func(w *row) any { return &w.OwnerID }},
	{name: "image_ref", by: apiLayer, claim: true, field: func(w *row) any { return &w.ImageRef }},
	{name: "storage_backend", field: func(w *row) any { return &w.StorageBackend }},
	{name: "uid_offset", field: func(w *row) any { return &w.UIDOffset }},
	{name: "created_at", field: func(w *row) any { return &w.CreatedAt }},

	{name: "home_ctx", by: controller, claim: true, field: func(w *row) any { return &w.Home }, value: func(w *row) (any, error) { return jsonOf(&w.Home) }},
	{name: "conditions", by: controller, field: func(w *row) any { return &w.Conditions }, value: conditionsValue},
	{name: "phase", by: controller, field: func(w *row) any { return &w.Phase }, also: "phase_changed_at = clock_timestamp()"},
	{name: "phase_changed_at", field: func(w *row) any { return &w.PhaseChangedAt }},
	{name: "operation", by: controller, claim: true, field: func(w *row) any { return &w.Operation }},
	{name: "op_id", by: controller, claim: true, field: func(w *row) any { return orEmpty(&w.OpID) }},
	{name: "op_started_at", by: controller, field: func(w *row) any { return &w.OpStartedAt }},
	{name: "progress", by: controller, quiet: true, field: func(w *row) any { return &w.Progress }, value: func(w *row) (any, error) { return jsonOf(w.Progress) }},
	{name: "archive_op_id", by: controller, field: func(w *row) any { return orEmpty(&w.ArchiveOpID) }},
	{name: "archive_key", by: controller, claim: true, field: func(w *row) any { return orEmpty(&w.ArchiveKey) }},
	{name: "archive_digest", by: controller, field: func(w *row) any { return &w.ArchiveDigest }},
	{name: "archive_size", by: controller, field: func(w *row) any { return &w.ArchiveSize }},
	{name: "error_reason", by: controller, claim: true, field: func(w *row) any { return (*zeronull.Text)(&w.ErrorReason) }},
	{name: "error_message", by: controller, field: func(w *row) any { return orEmpty(&w.ErrorMessage) }, value: func(w *row) (any, error) { return nullable(workspace.Cut(clean(w.ErrorMessage))), nil }},
	{name: "error_count", by: controller, field: func(w *row) any { return &w.ErrorCount }},
	{name: "retry_at", by: controller, claim: true, field: func(w *row) any { return &w.RetryAt }},
	{name: "stop_reason", by: controller, field: func(w *row) any { return orEmpty(&w.StopReason) }, value: func(w *row) (any, error) { return nullable(clean(w.StopReason)), nil }},
	{name: "running_image_ref", by: controller, field: func(w *row) any { return orEmpty(&w.RunningImage) }},
	{name: "image_pin", by: controller, field: func(w *row) any { return &w.ImagePin }, value: func(w *row) (any, error) { return jsonOf(w.ImagePin) }},
	{name: "image_newer", by: controller, field: func(w *row) any { return orEmpty(&w.ImageNewer) }},
	{name: "running_env_digest", by: controller, field: func(w *row) any { return orEmpty(&w.RunningEnv) }},

	{name: "running_size", by: controller, field: func(w *row) any { return orEmpty(&w.RunningSize) }},
	{name: "home_limit", by: controller, field: func(w *row) any { return &w.HomeLimit }},

	{name: "desired_state", by: apiLayer, claim: true, field: func(w *row) any { return &w.DesiredState }},
	{name: "desired_cause", by: apiLayer, field: func(w *row) any { return orEmpty(&w.DesiredCause) }},
	{name: "next_desired_state", by: apiLayer, claim: true, field: func(w *row) any { return (*zeronull.Text)(&w.NextDesired) }},
	{name: "deleted_at", by: apiLayer, claim: true, field: func(w *row) any { return &w.DeletedAt }},
	{name: "recover_requested_at", by: apiLayer, claim: true, field: func(w *row) any { return &w.RecoverRequestedAt }},
	{name: "recover_action", by: apiLayer, claim: true, field: func(w *row) any { return orEmpty(&w.RecoverAction) }},
	{name: "recover_archive", by: apiLayer, claim: true, field: func(w *row) any { return &w.RecoverFrom }, value: func(w *row) (any, error) { return jsonOf(w.RecoverFrom) }},
	{name: "restore_from", by: apiLayer, claim: true, field: func(w *row) any { return &w.RestoreFrom }, value: func(w *row) (any, error) { return jsonOf(w.RestoreFrom) }},
	{name: "cancel_requested_at", by: apiLayer, claim: true, field: func(w *row) any { return &w.CancelRequestedAt }},
	{name: "force_stop_requested_at", by: apiLayer, claim: true, field: func(w *row) any { return &w.ForceStopRequestedAt }},

	{name: "image_generation", by: apiLayer, claim: true, field: func(w *row) any { return &w.ImageGeneration }},
	{name: "image_pull", by: apiLayer, field: func(w *row) any { return &w.ImagePull }},
	{name: "size", by: apiLayer, field: func(w *row) any { return orEmpty(&w.Size) }},

	{name: "previous_image_ref", by: apiLayer, skipTick: true, field: func(w *row) any { return orEmpty(&w.PreviousImage) }},
	{name: "env", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.Env }, value: func(w *row) (any, error) { return envValue(w.Env) }},
	{name: "template", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.Template }, value: func(w *row) (any, error) { return jsonOf(w.Template) }},
	{name: "project", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.Project }, value: func(w *row) (any, error) { return jsonOf(w.Project) }},
	{name: "time_zone", by: apiLayer, skipTick: true, quiet: true, field: func(w *row) any { return orEmpty(&w.TimeZone) }},
	{name: "last_access_at", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.LastAccessAt }},
	{name: "last_access_kind", by: apiLayer, skipTick: true, field: func(w *row) any { return orEmpty(&w.LastAccess) }},
	{name: "keep_awake_until", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.KeepAwakeTil }},
	{name: "awake_while_working", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.AwakeWhileWorking }},
	{name: "freeing_at", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.FreeingAt }},
	{name: "freeing_from", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.FreeingFrom }},
	{name: "standby_ttl_seconds", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.StandbyTTL }},
	{name: "archive_ttl_seconds", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.ArchiveTTL }},
	{name: "backup_interval_seconds", by: apiLayer, skipTick: true, field: func(w *row) any { return &w.BackupInterval }},
	{name: "backup_keep", by: apiLayer, skipTick: true, field: func(w *row) any { return orEmpty(&w.BackupKeep) }},
	{name: "updated_at", skipTick: true, field: func(w *row) any { return &w.UpdatedAt }},
	{name: "home_bytes", skipTick: true, field: func(w *row) any { return &w.HomeBytes }},
	{name: "archives_bytes", skipTick: true, field: func(w *row) any { return &w.ArchivesBytes }},
	{expr: "unwatched_since(" + idleSince + ")", skipTick: true, field: func(w *row) any { return &w.Unwatched }},
	{expr: graceBegan, skipTick: true, field: func(w *row) any { return &w.GraceBegan }},
}...)

// textColumns are those of workspace.Texts.
func textColumns() (list []column) {
	for _, t := range workspace.Texts {
		list = append(list, column{name: t.Name, by: apiLayer, skipTick: !t.Line, field: func(w *row) any { return t.Current(w) }})
	}
	return list
}

// coreColumns are the columns that a tick reads; workspaceColumns are all.
var coreColumns, workspaceColumns = selected(false), selected(true)

func selected(all bool) string {
	var names []string
	for _, c := range columns {
		if all || !c.skipTick {
			names = append(names, c.expr+c.name)
		}
	}
	return strings.Join(names, ", ")
}

// coreTargets are the scan targets of coreColumns.
func coreTargets(w *workspace.Workspace) []any { return targets(w, false) }

// workspaceTargets are the scan targets of workspaceColumns.
func workspaceTargets(w *workspace.Workspace) []any { return targets(w, true) }

func targets(w *workspace.Workspace, all bool) []any {
	out := make([]any, 0, len(columns))
	for _, c := range columns {
		if all || !c.skipTick {
			out = append(out, c.field(w))
		}
	}
	return out
}

// valueOf returns the value that the column gets from w.
func (c column) valueOf(w *workspace.Workspace) (any, error) {
	if c.value != nil {
		return c.value(w)
	}
	if s, ok := c.field(w).(*zeronull.Text); ok {
		return nullable(string(*s)), nil
	}
	return reflect.ValueOf(c.field(w)).Elem().Interface(), nil
}

// same reports whether the column would store the same value for both workspaces.
func (c column) same(a, b *workspace.Workspace) bool {
	switch a := c.field(a).(type) {
	case **time.Time:
		return sameTime(*a, *c.field(b).(**time.Time))
	case *workspace.Conditions:
		return a.Equal(*c.field(b).(*workspace.Conditions))
	case *zeronull.Text:
		if c.value == nil {
			return *a == *c.field(b).(*zeronull.Text)
		}
		return *a == zeronull.Text(stored(c, b))
	case **workspace.Progress:
		return (*a).Equal(*c.field(b).(**workspace.Progress))
	}
	return reflect.DeepEqual(c.field(a), c.field(b))
}

// stored returns the text that the column stores for w.
func stored(c column, w *workspace.Workspace) string {
	if v, _ := c.value(w); v != nil && v.(*string) != nil {
		return *v.(*string)
	}
	return ""
}

func conditionsValue(w *workspace.Workspace) (any, error) {
	c := w.Conditions
	if c == nil {
		c = workspace.Conditions{}
	}
	return jsonOf(&c)
}

// envValue is the value of the column of environment variables.
func envValue(env map[string]string) ([]byte, error) {
	if len(env) == 0 {
		return nil, nil
	}
	return jsonOf(&env)
}
