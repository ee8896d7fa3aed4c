package postgres

// restorable selects deleted workspaces whose deletion can be undone: the rule of
// lifecycle.Restorable, in SQL.
const restorable = `deleted_at IS NOT NULL AND phase <> 'DELETED' AND home_ctx ->> 'state' <> 'deleting'
	AND (home_ctx ->> 'state' <> 'absent' OR home_ctx ->> 'claim' IS NULL)
	AND (home_ctx ->> 'state' IN ('live', 'archived') AND conditions #>> '{storage.volume_ready,status}' IS NOT DISTINCT FROM 'True'
		OR archive_key IS NOT NULL AND NOT EXISTS (SELECT FROM archives WHERE key = archive_key AND deleting_at IS NOT NULL))`

// deletionFailing selects workspaces whose deletion failed: the rule of
// lifecycle.DeletionFailing, in SQL.
const deletionFailing = `deleted_at IS NOT NULL AND phase <> 'DELETED' AND (error_reason NOT IN ('ActionFailed', 'Unrestorable')
	OR home_ctx ->> 'state' = 'deleting' AND error_reason <> 'Unrestorable')`

// onlyArchives selects workspaces without a running operation and without a home in
// Docker: the rule of lifecycle.OnlyArchives, in SQL.
const onlyArchives = `operation = 'NONE' AND home_ctx ->> 'state' = 'absent'`

// deletedListed selects what the list of deleted workspaces shows: those that can be
// restored, and those that need their owner.
const deletedListed = `(` + restorable + ` OR ` + deletionFailing + `)`

// graceBegan is the start of a deletion's grace period, in SQL: the deletion, or the later
// restart of all waits. NULL without a deletion.
const graceBegan = `CASE WHEN deleted_at IS NOT NULL THEN GREATEST(deleted_at, (SELECT restored_at FROM gc_state)) END`
