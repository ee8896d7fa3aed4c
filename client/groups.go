package client

import (
	"context"
	"net/http"
	"net/url"

	"codehub/api"
)

// Groups lists the groups that the user is in, or, for administrators, all.
func (c *Client) Groups(ctx context.Context) ([]api.Group, error) {
	list := []api.Group{}
	err := pages(func(query url.Values) (string, error) {
		var page api.GroupList
		err := c.call(ctx, http.MethodGet, "/groups", query, nil, &page)
		list = append(list, page.Groups...)
		return page.NextCursor, err
	})
	return list, err
}

// Group reads a group.
func (c *Client) Group(ctx context.Context, id string) (api.Group, error) {
	var out api.Group
	err := c.call(ctx, http.MethodGet, "/groups/"+url.PathEscape(id), nil, nil, &out)
	return out, err
}

// CreateGroup adds a group; for administrators.
func (c *Client) CreateGroup(ctx context.Context, in api.CreateGroup) (api.Group, error) {
	var out api.Group
	err := c.call(ctx, http.MethodPost, "/groups", nil, in, &out)
	return out, err
}

// PatchGroup changes a group; for administrators.
func (c *Client) PatchGroup(ctx context.Context, id string, in api.PatchGroup) (api.Group, error) {
	var out api.Group
	err := c.call(ctx, http.MethodPatch, "/groups/"+url.PathEscape(id), nil, in, &out)
	return out, err
}

// DeleteGroup removes a group; for administrators.
func (c *Client) DeleteGroup(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/groups/"+url.PathEscape(id), nil, nil, nil)
}

// Members lists the members of a group; for its administrators.
func (c *Client) Members(ctx context.Context, id string) ([]api.Member, error) {
	list := []api.Member{}
	err := pages(func(query url.Values) (string, error) {
		var page api.MemberList
		err := c.call(ctx, http.MethodGet, "/groups/"+url.PathEscape(id)+"/members", query, nil, &page)
		list = append(list, page.Members...)
		return page.NextCursor, err
	})
	return list, err
}

// SetMember adds a member to a group, or changes one; for its administrators.
func (c *Client) SetMember(ctx context.Context, id string, in api.SetMember) (api.Member, error) {
	var out api.Member
	err := c.call(ctx, http.MethodPost, "/groups/"+url.PathEscape(id)+"/members", nil, in, &out)
	return out, err
}

// RemoveMember removes a user from a group; for its administrators. A member by the claim stays
// one.
func (c *Client) RemoveMember(ctx context.Context, id, user string) (api.RemovedMember, error) {
	var out api.RemovedMember
	err := c.call(ctx, http.MethodDelete, "/groups/"+url.PathEscape(id)+"/members/"+url.PathEscape(user), nil, nil, &out)
	return out, err
}
