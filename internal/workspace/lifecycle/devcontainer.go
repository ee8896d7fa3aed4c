package lifecycle

import (
	"cmp"
	"maps"

	"codehub/internal/workspace"
)

// FollowDevcontainer returns what changes if the workspace uses the description of its repository;
// nil: none any more. Then what its owner has changed since stays. used is d with what the workspace
// had before.
func FollowDevcontainer(w workspace.Workspace, d *workspace.Devcontainer) (c TemplateChange, used *workspace.Devcontainer) {
	var old, next workspace.Devcontainer
	before := workspace.DevcontainerSettings{Image: w.ImageRef, Size: cmp.Or(w.Size, workspace.DefaultSize)}
	if p := w.Project; p != nil && p.Devcontainer != nil {
		old = *p.Devcontainer
		before = old.Before
	}
	if d != nil {
		next = *d
	}
	c.Image = given(w.ImageRef, next.Given.Image, old.Given.Image, before.Image)
	if size := given(cmp.Or(w.Size, workspace.DefaultSize), next.Given.Size, old.Given.Size, before.Size); size != nil {
		named := workspace.SizeNamed(*size)
		c.Size = &named
	}
	c.Env, before.Env = map[string]*string{}, maps.Clone(before.Env)
	for name, value := range next.Given.Env {
		is, has := w.Env[name]
		if value == "" && is != "" { // ${localEnv:NAME}, which is empty in a workspace
			continue
		}
		if _, again := old.Given.Env[name]; has && !again {
			if before.Env == nil {
				before.Env = map[string]string{}
			}
			before.Env[name] = is
		}
		if !has || is != value {
			c.Env[name] = &value
		}
	}
	for name, value := range old.Given.Env {
		if _, again := next.Given.Env[name]; again {
			continue
		}
		if is, has := w.Env[name]; has && is == value {
			c.Env[name] = nil
			if was, had := before.Env[name]; had {
				c.Env[name] = &was
			}
		}
		delete(before.Env, name)
	}
	if d == nil {
		return c, nil
	}
	next.Before = before
	return c, &next
}

// given returns the new value of a setting; nil: it stays. Empty values are not given.
func given(is, gives, gave, before string) *string {
	switch {
	case gives != "" && gives != is:
		return &gives
	case gives == "" && gave != "" && gave == is && before != is:
		return &before
	}
	return nil
}
