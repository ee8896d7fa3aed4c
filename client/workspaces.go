package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"codehub/api"
)

// Filter narrows List.
type Filter struct {
	Query   string // part of the name or description
	Phase   string
	Deleted bool // only deleted workspaces, instead of the others
}

// List lists the caller's workspaces, newest first. It reads all pages.
func (c *Client) List(ctx context.Context, f Filter) ([]api.Workspace, error) {
	q := url.Values{"limit": {"200"}}
	if f.Query != "" {
		q.Set("q", f.Query)
	}
	if f.Phase != "" {
		q.Set("phase", f.Phase)
	}
	if f.Deleted {
		q.Set("deleted", "true")
	}
	list := []api.Workspace{}
	for {
		var page api.WorkspaceList
		if err := c.call(ctx, http.MethodGet, "/workspaces", q, nil, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Workspaces...)
		if page.NextCursor == "" {
			return list, nil
		}
		q.Set("cursor", page.NextCursor)
	}
}

// Create creates a workspace.
func (c *Client) Create(ctx context.Context, in api.CreateWorkspace) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, "/workspaces", nil, in)
}

// Get reads a workspace.
func (c *Client) Get(ctx context.Context, id string) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodGet, path(id, ""), nil, nil)
}

// Update changes a workspace or its desired state.
func (c *Client) Update(ctx context.Context, id string, in api.UpdateWorkspace) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPatch, path(id, ""), nil, in)
}

// Want sets the desired state; queue allows that during an operation, and applies it
// afterwards.
func (c *Client) Want(ctx context.Context, id, desired string, queue bool) (api.Workspace, error) {
	return c.Update(ctx, id, api.UpdateWorkspace{DesiredState: &desired, Queue: queue})
}

// Delete deletes a workspace; queue allows that during an operation, which is cancelled or,
// where it cannot be, awaited.
func (c *Client) Delete(ctx context.Context, id string, queue bool) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodDelete, path(id, ""), flag("queue", queue), nil)
}

// Do requests a change that needs nothing but the workspace: undelete, cancel, stay or
// update-image.
func (c *Client) Do(ctx context.Context, id, change string) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, path(id, "/"+change), nil, nil)
}

// Recover clears the error of a workspace in ERROR.
func (c *Client) Recover(ctx context.Context, id string, in api.Recover) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, path(id, "/recover"), nil, in)
}

// Stop stops a workspace; with force its container is removed at once.
func (c *Client) Stop(ctx context.Context, id string, force bool) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, path(id, "/stop"), flag("force", force), nil)
}

// Logs streams the log of the workspace's container: at most the newest tail
// lines (0 = all that is kept), and with follow also new ones. The caller closes
// it.
func (c *Client) Logs(ctx context.Context, id string, tail int, follow bool) (io.ReadCloser, error) {
	q := url.Values{"tail": {strconv.Itoa(tail)}}
	if follow {
		q.Set("follow", "true")
	}
	resp, err := c.request(ctx, http.MethodGet, path(id, "/logs"), q, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// Usage returns the processor time, memory and disk that a running workspace uses.
func (c *Client) Usage(ctx context.Context, id string) (api.Usage, error) {
	return ask[api.Usage](ctx, c, http.MethodGet, path(id, "/usage"), nil, nil)
}

// Setup returns how far a running workspace is with what its start does in addition to the IDE.
func (c *Client) Setup(ctx context.Context, id string) (api.Setup, error) {
	return ask[api.Setup](ctx, c, http.MethodGet, path(id, "/setup"), nil, nil)
}

// RetrySetup runs the failed steps of a workspace's setup again.
func (c *Client) RetrySetup(ctx context.Context, id string) (api.Setup, error) {
	return ask[api.Setup](ctx, c, http.MethodPost, path(id, "/setup/retry"), nil, nil)
}

// Devcontainers returns the files by which the repositories of a running workspace describe their
// environment.
func (c *Client) Devcontainers(ctx context.Context, id string) (api.DevcontainerList, error) {
	return ask[api.DevcontainerList](ctx, c, http.MethodGet, path(id, "/devcontainer"), nil, nil)
}

// UseDevcontainer has the next start of a workspace use such a file. If an image is built from the
// file, the workspace stays as it is until DevcontainerBuild reports the end of the build.
func (c *Client) UseDevcontainer(ctx context.Context, id string, in api.UseDevcontainer) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodPost, path(id, "/devcontainer"), nil, in)
}

// StopDevcontainer has the next start of a workspace use no such file.
func (c *Client) StopDevcontainer(ctx context.Context, id string) (api.Workspace, error) {
	return c.workspace(ctx, http.MethodDelete, path(id, "/devcontainer"), nil, nil)
}

// DevcontainerBuild returns the last build of an image from such a file.
func (c *Client) DevcontainerBuild(ctx context.Context, id string) (api.DevcontainerBuild, error) {
	return ask[api.DevcontainerBuild](ctx, c, http.MethodGet, path(id, "/devcontainer/build"), nil, nil)
}

// CancelDevcontainerBuild cancels the build that runs. It ends within seconds.
func (c *Client) CancelDevcontainerBuild(ctx context.Context, id string) (api.DevcontainerBuild, error) {
	return ask[api.DevcontainerBuild](ctx, c, http.MethodDelete, path(id, "/devcontainer/build"), nil, nil)
}

func (c *Client) workspace(ctx context.Context, method, path string, q url.Values, in any) (api.Workspace, error) {
	return ask[api.Workspace](ctx, c, method, path, q, in)
}

func path(id, action string) string { return "/workspaces/" + url.PathEscape(id) + action }

func flag(name string, on bool) url.Values {
	if !on {
		return nil
	}
	return url.Values{name: {"true"}}
}
