package workspace

import "errors"

// labels are what fields of requests are called on the pages.
var labels = map[string]string{
	"name": "Name", "description": "Description", "memo": "Notes", "image_ref": "Image", "size": "Size", "time_zone": "Time zone",
	"standby_ttl_seconds": "Stop when idle", "archive_ttl_seconds": "Archive when stopped", "keep_awake_until": "Keep awake until",
	"backup_interval_seconds": "Back up every", "backup_keep": "Keep backups",
	"desired_state": "State", "archive_op_id": "Archive", "message": "Message", "to": "New owner", "user": "User", "claim": "Group at the identity provider", "issuer": "Issuer",
	"max_running": "Running limit", "max_workspaces": "Workspaces", "max_bytes": "Size of homes and archives",
	"port": "Port", "with": "Who can open it", "expires_in_seconds": "How long", "expires_at": "Expires after",
	"repo": "Repository", "repositories": "Repositories", "branch": "Branch", "path": "Folder", "depth": "Depth",
	"file": "File", "note": "Note", "count": "Count", "backup": "Backup", "current": "Current password", "new": "New password",
}

// FieldLabel returns what a message calls a field of a request: its label on the pages, in
// quotes, and the field itself if pages do not have it.
func FieldLabel(field string) string {
	if label, ok := labels[field]; ok {
		return "“" + label + "”"
	}
	return field
}

// FieldOf returns the field of a request that an InvalidField is about, and its reason if it has one;
// empty for another error.
func FieldOf(err error) (field, reason string) {
	var e *Error
	if errors.As(err, &e) && e.Code == CodeInvalid {
		field, _ = e.Details["field"].(string)
		reason, _ = e.Details["reason"].(string)
	}
	return field, reason
}

// InvalidField returns CodeInvalid about a field of a request. The message is its label and the
// problem, such as "is required."; the details have the field for programs.
func InvalidField(field, problem string) *Error {
	e := Errorf(CodeInvalid, "%s %s", FieldLabel(field), problem)
	e.Details = map[string]any{"field": field}
	return e
}
