package sshgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// waitingFor says what a connection waits for.
func waitingFor(ws workspace.Workspace) string {
	switch state := lifecycle.StateOf(ws); state {
	case lifecycle.StateStopped:
		return ws.Name + " is starting."
	case lifecycle.StateStopping, lifecycle.StateArchiving:
		return ws.Name + " is " + string(state) + ". It starts after that."
	case lifecycle.StateRunning: // its agent does not answer yet
		return ws.Name + " is starting."
	default:
		text := ws.Name + " is " + string(state)
		if p := ws.Progress; p != nil && p.Total > 0 {
			text += fmt.Sprintf(" (%d %%)", min(100, p.Done*100/p.Total))
		}
		return text + "."
	}
}

// explain says why a connection has no workspace, and what the user can do. name is
// what the user called the workspace.
func (c *connection) explain(err error) string {
	name := plain(c.ssh.User())
	var notOpen *attach.NotOpen
	var coded *workspace.Error
	switch {
	case errors.Is(err, io.EOF): // the attachment may still be under way
		return "The connection was closed."
	case errors.As(err, &notOpen):
		return c.closed(notOpen)
	case errors.Is(err, errFull):
		return "Too many SSH connections are open on this server. Try again later."
	case errors.Is(err, errNoProgram):
		return "The session was closed because it started no program for 10 seconds."
	case errors.Is(err, errUnread):
		return "The session was closed because the workspace did not read its input and the server ran out of memory for it."
	case errors.Is(err, errTooMany), errors.Is(err, attach.ErrTooMany):
		return "You have too many open connections to workspaces. Close some first."
	case errors.Is(err, attach.ErrNoAgent):
		return "The workspace was started by another version of codehub. To enter it, " + c.restart(err, name)
	case errors.Is(err, attach.ErrStopped):
		return "The workspace was stopped."
	case errors.Is(err, auth.ErrSessionEnded):
		return "Your login has ended: the key or token was removed or has expired, or the account was disabled."
	case errors.Is(err, attach.ErrAccessEnded):
		return "You no longer have access to the workspace."
	case errors.Is(err, attach.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, errClosed):
		return "codehub is shutting down. Connect again in a moment."
	case errors.Is(err, errDataAfterEOF):
		return "The connection was closed because the client violated the protocol."
	case errors.Is(err, errSilent):
		return "The connection timed out."
	case errors.Is(err, agent.ErrUnreachable):
		return "The workspace does not respond. Try again in a moment, or " + c.restart(err, name)
	case errors.As(err, &coded):
		return c.refused(coded, name)
	}
	c.gate.cfg.Log.Error("enter a workspace by SSH failed", "user", c.caller.UserID, "workspace", string(c.id), "err", err)
	return "Something went wrong on the server."
}

// restart says, as the end of a sentence, who can restart the workspace, after an error of the attachment or of its agent.
func (c *connection) restart(err error, name string) string {
	guest := errors.Is(err, attach.ErrGuest)
	if !guest {
		select {
		case <-c.ready:
			guest = c.way != nil && !c.caller.Uses(c.way.Workspace.OwnerID, c.way.Workspace.ID)
		default:
		}
	}
	if guest {
		return "ask its owner to restart it."
	}
	return "restart it: codehub restart " + quoted(name)
}

func (c *connection) closed(e *attach.NotOpen) string {
	ws := e.Workspace
	name := plain(ws.Name)
	if e.StoppedAgain() {
		return name + " was stopped while the connection waited for it. Connect again to start it."
	}
	if !c.caller.Uses(ws.OwnerID, ws.ID) {
		return name + " is not running, and only its owner can start it."
	}
	switch e.Opening {
	case lifecycle.OpenRestores:
		return fmt.Sprintf("%s is archived. Restore it first: codehub restore %s, or %s", name, quoted(name), c.gate.cfg.PageOf(ws.ID))
	case lifecycle.OpenCreates:
		return fmt.Sprintf("%s was never started. Start it first: codehub start %s, or %s", name, quoted(name), c.gate.cfg.PageOf(ws.ID))
	case lifecycle.OpenDeleted:
		return fmt.Sprintf("%s is deleted. To undo that: codehub undelete %s", name, quoted(name))
	}
	text := name + " has failed"
	if ws.ErrorMessage != "" {
		text += ": " + strings.TrimSuffix(plain(ws.ErrorMessage), ".")
	}
	return fmt.Sprintf("%s. To recover it: codehub recover %s, or %s", text, quoted(name), c.gate.cfg.PageOf(ws.ID))
}

func (c *connection) refused(e *workspace.Error, name string) string {
	switch e.Code {
	case workspace.CodeNotFound, workspace.CodeForbidden:
		return fmt.Sprintf("You have no workspace with the name %s. The user name of the SSH address is the name of a workspace; codehub list shows yours.", quoted(name))
	case workspace.CodeLimitExceeded:
		list, _ := e.Details["running_workspaces"].([]map[string]any)
		var stops []string
		for _, w := range list {
			stops = append(stops, "codehub stop "+quoted(plain(fmt.Sprint(w["name"]))))
		}
		if len(stops) > 0 {
			return plain(e.Message) + " For example: " + strings.Join(stops, ", or ")
		}
	}
	return plain(e.Message)
}

// plain removes what a terminal would interpret.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case control(r) || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// quoted is a name as a shell takes it.
func quoted(name string) string {
	if name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_./@+", r)
	}) && !strings.HasPrefix(name, "-") {
		return name
	}
	return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}
