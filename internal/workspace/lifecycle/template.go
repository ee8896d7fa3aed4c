package lifecycle

import (
	"maps"
	"reflect"

	"codehub/internal/workspace"
)

// TemplateChange is what an update to another version of its template changes in a workspace. A
// setting that its owner has changed since is not in it.
type TemplateChange struct {
	Image, Size            *string
	Env                    map[string]*string // by name; nil removes the variable
	StandbyTTL, ArchiveTTL workspace.Optional[int]
	BackupInterval         workspace.Optional[int]
	BackupKeep             *string
	Project                workspace.Optional[workspace.Project] // as a whole
}

// None reports that nothing changes.
func (c TemplateChange) None() bool {
	return c.Image == nil && c.Size == nil && len(c.Env) == 0 && !c.StandbyTTL.Set && !c.ArchiveTTL.Set && !c.Project.Set &&
		!c.BackupInterval.Set && c.BackupKeep == nil
}

// FollowTemplate returns what changes if the workspace gets these settings from its template.
func FollowTemplate(w workspace.Workspace, to workspace.TemplateSettings) TemplateChange {
	var c TemplateChange
	if w.Template == nil {
		return c
	}
	from := w.Template.Settings
	if w.ImageRef == from.Image && to.Image != from.Image {
		c.Image = &to.Image
	}
	if w.Size == from.Size && to.Size != from.Size {
		c.Size = &to.Size
	}
	names := maps.Clone(from.Env)
	if names == nil {
		names = map[string]string{}
	}
	maps.Copy(names, to.Env)
	for name := range names {
		was, had := from.Env[name]
		is, has := w.Env[name]
		next, gets := to.Env[name]
		if had != has || was != is || has == gets && is == next {
			continue
		}
		if c.Env == nil {
			c.Env = map[string]*string{}
		}
		c.Env[name] = nil
		if gets {
			c.Env[name] = &next
		}
	}
	c.StandbyTTL = followTTL(w.StandbyTTL, from.StandbyTTL, to.StandbyTTL)
	c.ArchiveTTL = followTTL(w.ArchiveTTL, from.ArchiveTTL, to.ArchiveTTL)
	c.BackupInterval = followTTL(w.BackupInterval, from.BackupInterval, to.BackupInterval)
	if w.BackupKeep == from.BackupKeep && to.BackupKeep != from.BackupKeep {
		c.BackupKeep = &to.BackupKeep
	}
	if project := w.Project.Follow(from.Project, to.Project); !reflect.DeepEqual(project, w.Project) {
		c.Project = workspace.Optional[workspace.Project]{Set: true, Value: project}
	}
	return c
}

func followTTL(is, from, to *int) workspace.Optional[int] {
	same := func(a, b *int) bool { return a == b || a != nil && b != nil && *a == *b }
	return workspace.Optional[int]{Set: same(is, from) && !same(from, to), Value: to}
}
