package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"codehub/client"
	"codehub/internal/cli/terminal"
)

// messageOf returns what is printed about err; empty: nothing.
func messageOf(err error) string {
	if err == nil || terminal.Quiet(err) {
		return ""
	}
	if message := redacted(explain(err).Error()); strings.TrimSpace(message) != "" {
		return message
	}
	return fmt.Sprintf("the command failed, and no reason was given (%T)", err)
}

// exitCode returns the exit code after err.
func exitCode(err error) int {
	if code := terminal.ExitCode(err); code > terminal.ExitNotFound {
		return code // that of a command in a workspace
	}
	switch client.CodeOf(err) {
	case "not_found", "archive_not_found":
		return terminal.ExitNotFound
	}
	return terminal.ExitCode(err)
}

// tokenForm matches texts of the form of an API token.
var tokenForm = regexp.MustCompile(`chub_\S+`)

// redacted removes API tokens from a message. A user may have given one as an
// argument, which the message repeats.
func redacted(message string) string { return tokenForm.ReplaceAllString(message, "chub_…") }

// flags are those of the commands for fields of requests.
var flags = map[string]string{
	"description": "--description", "memo": "--memo", "image_ref": "--image", "size": "--size", "template": "--template", "parameters": "--param", "like": "--like", "standby_ttl_seconds": "--standby-ttl", "archive_ttl_seconds": "--archive-ttl", "backup_interval_seconds": "--backup-interval", "backup_keep": "--backup-keep",
	"with": "--with", "expires_in_seconds": "--for", "expires_at": "--expires", "claim": "--claim", "env": "--env", "file": "--file", "note": "--note", "count": "--count", "backup": "--from", "workspace_id": "--workspace", "issuer": "--issuer", "message": "--message",
	"repo": "--repo", "branch": "--branch", "path": "--folder", "depth": "--depth", "login": "--login",
}

// explain adds to an error what the user can do about it.
func explain(err error) error {
	if rest := (*client.WaitError)(nil); errors.As(err, &rest) && rest.Workspace.ErrorReason != nil {
		w := rest.Workspace
		text := problem(*w.ErrorReason)
		if detail := errorDetail(w); detail != "" {
			text += ": " + terminal.Plain(detail)
		}
		return fmt.Errorf("%s: %s. %s", terminal.Plain(w.Name), state(w), text)
	}
	if errors.Is(err, errNoServer) {
		return errNoServer
	}
	if errors.Is(err, context.Canceled) { // by a signal
		return errors.New("interrupted")
	}
	var e *client.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case "invalid_request":
		field, _ := e.Details["field"].(string)
		label, rest, ok := strings.Cut(e.Message, "” ") // see workspace.InvalidField
		if ok && strings.HasPrefix(label, "“") && flags[field] != "" {
			return &client.Error{Status: e.Status, Code: e.Code, Message: flags[field] + " " + rest, Details: e.Details}
		}
	case "unauthenticated":
		if os.Getenv(tokenVariable) != "" {
			return &client.Error{Code: e.Code, Message: "The token in " + tokenVariable + " is not valid. It may have expired or been revoked."}
		}
		return fmt.Errorf("%w Use: codehub login", err)
	case "quota_exceeded":
		if e.Details["free_space"] == true {
			return fmt.Errorf("%w Use: codehub start --free-space", err)
		}
	case "workspace_limit_exceeded":
		var names []string
		running, _ := e.Details["running_workspaces"].([]any)
		for _, r := range running {
			if m, ok := r.(map[string]any); ok {
				names = append(names, terminal.Plain(fmt.Sprint(m["name"])))
			}
		}
		if len(names) > 0 {
			return fmt.Errorf("%w Running: %s", err, strings.Join(names, ", "))
		}
	}
	return err
}
