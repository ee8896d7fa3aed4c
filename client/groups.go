package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Groups lists the groups that the user is in, or, for administrators, all.
func (c *Client) Groups(ctx context.Context) ([]api.Group, error) {
	return all(ctx, c, "/groups", func(page api.GroupList) ([]api.Group, string) { return page.Groups, page.NextCursor })
}

// Group reads a group.
func (c *Client) Group(ctx context.Context, id string) (api.Group, error) {
	return ask[api.Group](ctx, c, http.MethodGet, "/groups/"+url.PathEscape(id), nil, nil)
}

// CreateGroup adds a group; for administrators.
func (c *Client) CreateGroup(ctx context.Context, in api.CreateGroup) (api.Group, error) {
	return ask[api.Group](ctx, c, http.MethodPost, "/groups", nil, in)
}

// PatchGroup changes a group; for administrators.
func (c *Client) PatchGroup(ctx context.Context, id string, in api.PatchGroup) (api.Group, error) {
	return ask[api.Group](ctx, c, http.MethodPatch, "/groups/"+url.PathEscape(id), nil, in)
}

// DeleteGroup removes a group; for administrators.
func (c *Client) DeleteGroup(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/groups/"+url.PathEscape(id), nil, nil, nil)
}

// Members lists the members of a group; for its administrators.
func (c *Client) Members(ctx context.Context, id string) ([]api.Member, error) {
	return all(ctx, c, "/groups/"+url.PathEscape(id)+"/members", func(page api.MemberList) ([]api.Member, string) { return page.Members, page.NextCursor })
}

// SetMember adds a member to a group, or changes one; for its administrators.
func (c *Client) SetMember(ctx context.Context, id string, in api.SetMember) (api.Member, error) {
	return ask[api.Member](ctx, c, http.MethodPost, "/groups/"+url.PathEscape(id)+"/members", nil, in)
}

// RemoveMember removes a user from a group; for its administrators. A member by the claim stays
// one.
func (c *Client) RemoveMember(ctx context.Context, id, user string) (api.RemovedMember, error) {
	return ask[api.RemovedMember](ctx, c, http.MethodDelete, "/groups/"+url.PathEscape(id)+"/members/"+url.PathEscape(user), nil, nil)
}
