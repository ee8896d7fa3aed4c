package service

import (
	"context"
	"errors"
	"slices"
	"time"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
)

// Limits of a VersionPage: its backups, and the bytes of their manifests.
const (
	maxVersionBackups   = 100
	maxVersionManifests = 64 << 20
)

// VersionPage is a part of the complete backups of a home in which the versions of a file are looked up.
type VersionPage struct {
	backups []workspace.Backup // newest first
	more    bool               // the last one belongs to the next page
}

// VersionPageOf selects the backups from a cursor of Read on; empty: from the newest.
func VersionPageOf(ctx context.Context, db *postgres.DB, caller workspace.Caller, id workspace.ID, cursor string) (p VersionPage, err error) {
	for at := (postgres.Page{Limit: postgres.MaxList}); ; {
		list, next, err := db.HomeBackups(ctx, caller, id, at)
		if err != nil {
			return p, err
		}
		p.backups = append(p.backups, slices.DeleteFunc(list, func(b workspace.Backup) bool { return b.State != workspace.BackupDone })...)
		if at.Cursor = next; next == "" {
			break
		}
	}
	if cursor != "" {
		from := slices.IndexFunc(p.backups, func(b workspace.Backup) bool { return b.ID == cursor })
		if from < 0 {
			return p, workspace.Errorf(workspace.CodeInvalid, "Invalid cursor.")
		}
		p.backups = p.backups[from:]
	}
	bytes := int64(0)
	for i, b := range p.backups {
		if bytes += b.Size; i >= maxVersionBackups || i > 1 && bytes > maxVersionManifests {
			p.backups, p.more = p.backups[:i+1], true
			break
		}
	}
	return p, nil
}

// Memory is how many bytes of manifests Read has in memory.
func (p VersionPage) Memory() int64 {
	most := int64(0)
	for _, b := range p.backups {
		most = max(most, b.Size)
	}
	return 2 * most // with one that is not collected yet
}

// Read reads which of the backups have another version of the file than the one before. generation is
// bucket.Bucket.Generation. Damaged and missing backups are left out.
func (p VersionPage) Read(ctx context.Context, generation func(ctx context.Context, key string) (*archive.Manifest, archive.GetRange, error), name string) (api.FileVersions, error) {
	out := api.FileVersions{Versions: []api.FileVersion{}}
	var newer workspace.Backup
	var has archive.Version // of newer
	for _, b := range p.backups {
		m, _, err := generation(ctx, b.Key)
		var version archive.Version
		if err == nil {
			version, err = m.Version(name)
		}
		switch {
		case err == nil:
			addVersion(&out, newer, has, version)
			newer, has = b, version
		case ctx.Err() != nil:
			return out, context.Cause(ctx)
		case !errors.Is(err, archive.ErrCorrupted) && !errors.Is(err, store.ErrNotFound):
			return out, err
		}
	}
	switch last := len(p.backups) - 1; {
	case !p.more:
		addVersion(&out, newer, has, archive.Version{})
	case newer.ID == "" || newer.ID == p.backups[0].ID: // the others cannot be read
		out.NextCursor = p.backups[last].ID
		addVersion(&out, newer, has, archive.Version{})
	default:
		out.NextCursor = newer.ID
	}
	return out, nil
}

// addVersion adds what b has, if the backup before has another version.
func addVersion(out *api.FileVersions, b workspace.Backup, has, before archive.Version) {
	if b.ID == "" || has.Same(before) {
		return
	}
	v := api.FileVersion{Backup: b.ID, At: b.Archive().CreatedAt.UTC(), Note: b.Note, Cause: b.Cause, Change: api.FileModified, Kind: "file"}
	switch {
	case !has.Exists():
		v.Change, has = api.FileRemoved, before
	case !before.Exists():
		v.Change = api.FileAdded
	}
	if has.Entry.Link != "" {
		v.Kind = "link"
	}
	v.Size, v.ModifiedAt = has.Entry.Size, has.Entry.ModTime.UTC()
	if y := v.ModifiedAt.Year(); y < 0 || y > 9999 { // which JSON cannot have
		v.ModifiedAt = time.Time{}
	}
	out.Versions = append(out.Versions, v)
}
