package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"codehub/api"
)

// WaitError is the error of Wait for a workspace that did not reach the state that
// was waited for.
type WaitError struct{ Workspace api.Workspace }

func (e *WaitError) Error() string {
	w := e.Workspace
	is := strings.ReplaceAll(w.State, "_", " ")
	if w.Phase == "ERROR" {
		is = "in error"
	}
	switch {
	case w.ErrorMessage != nil:
		return fmt.Sprintf("%s is %s: %s", w.Name, is, *w.ErrorMessage)
	case w.ErrorReason != nil:
		return fmt.Sprintf("%s is %s: %s", w.Name, is, *w.ErrorReason)
	}
	return fmt.Sprintf("%s is %s", w.Name, is)
}

// Wait watches a workspace until seen returns true, and returns its last state. It
// returns a WaitError for a workspace in ERROR, and the server's error for one that
// is deleted.
func (c *Client) Wait(ctx context.Context, id string, seen func(api.Workspace) (done bool)) (api.Workspace, error) {
	var last api.Workspace
	check := func(w api.Workspace) error {
		last = w
		switch {
		case seen(w):
			return ErrStop
		case w.Phase == "ERROR" && w.Operation == "NONE":
			return &WaitError{Workspace: w}
		}
		return nil
	}
	err := c.Events(ctx, func(e Event) error {
		switch {
		case e.ID != id:
			return nil
		case e.Name == api.EventUpdated:
			return check(e.Workspace)
		case e.Name == api.EventDeleted:
			w, err := c.Get(ctx, id)
			if err != nil {
				return err
			}
			return check(w)
		}
		return nil
	})
	return last, err
}

// Restart stops a running workspace and starts it again. It starts a workspace that is
// not running, after the current operation if there is one.
func (c *Client) Restart(ctx context.Context, id string) (api.Workspace, error) {
	w, err := c.Do(ctx, id, "restart")
	switch CodeOf(err) {
	case "not_running", "operation_in_progress":
		return c.Want(ctx, id, "RUNNING", true)
	}
	return w, err
}

// Checks returns the results of the server's checks and conditions, by name: "ok", "failed", or
// "unknown" until the first check has ended.
func (c *Client) Checks(ctx context.Context) (map[string]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(c.base, "/api/v1")+"/readyz", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", c.agent)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var out struct{ Checks map[string]string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&out); err != nil {
		return nil, fmt.Errorf("read the answer of GET /readyz: %w", err)
	}
	return out.Checks, nil
}
