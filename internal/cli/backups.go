package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// backupPoll is how often the state of a backup is read while a command waits for it.
const backupPoll = time.Second

type backupsCmd struct {
	onWorkspace
	Files    string `name:"files" placeholder:"FOLDER" xor:"what" help:"List a folder of a backup; . for the home."`
	Backup   string `name:"backup" placeholder:"BACKUP" help:"Id, note or time of the backup, for --files (default: the latest)."`
	Versions string `name:"versions" placeholder:"FILE" xor:"what" help:"List the backups in which a file changed."`
}

// Help names what is listed, and how to use it.
func (backupsCmd) Help() string {
	return `CHANGES are files that were added, modified and removed since the backup before. Commands accept the beginning of an id. codehub diff lists the changes, --versions the backups with another version of a file (A: added, M: modified, R: removed), codehub restore --from goes back, and codehub download --backup --path downloads one file.`
}

func (b backupsCmd) Run(ctx context.Context, k *kong.Context) error {
	return b.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		list, err := c.Backups(ctx, id)
		if err != nil {
			return nil, "", err
		}
		if b.Versions != "" {
			versions, err := c.FileVersions(ctx, id, b.Versions)
			return versions, versionTable(versions, idLength(list)), err
		}
		if b.Files == "" {
			space, err := c.BackupSpace(ctx, id)
			return list, backupTable(list) + backupSpace(space), err
		}
		from, err := chooseBackup(list, b.Backup, time.Now())
		if err != nil {
			return nil, "", err
		}
		files, err := c.BackupFiles(ctx, id, from.ID, b.Files)
		return files, fileTable(files), err
	})
}

// backupTable lists backups, with as much of their ids as tells them apart.
func backupTable(list []api.Backup) string {
	rows := [][]string{{"BACKUP", "TIME", "REASON", "CHANGES", "SIZE", "ADDED", ""}}
	n := idLength(list)
	for _, b := range list {
		row := []string{b.ID[:min(n, len(b.ID))], terminal.Time(backupTime(b)), backupReason(b.Note, b.Cause), "", "", "", backupState(b)}
		if b.State == "done" {
			row[3], row[4], row[5] = fmt.Sprintf("+%d ~%d -%d", b.Added, b.Modified, b.Removed), terminal.Size(b.Bytes), terminal.Size(b.StoredBytes)
		}
		rows = append(rows, row)
	}
	return terminal.Table(rows)
}

// versionTable lists the versions of a file, with so many characters of the backups' ids.
func versionTable(list []api.FileVersion, n int) string {
	if len(list) == 0 {
		return "No backup has this file."
	}
	rows := [][]string{{"", "BACKUP", "TIME", "REASON", "SIZE", "FILE CHANGED"}}
	for _, v := range list {
		row := []string{changeLetters[v.Change], v.Backup[:min(n, len(v.Backup))], terminal.Time(v.At), backupReason(v.Note, v.Cause), "", ""}
		if v.Change != api.FileRemoved {
			row[4], row[5] = terminal.Size(v.Size), terminal.Time(v.ModifiedAt)
		}
		rows = append(rows, row)
	}
	return terminal.Table(rows)
}

// backupSpace is what follows the list of backups.
func backupSpace(s api.BackupSpace) string {
	text := terminal.Size(s.WorkspaceBytes) + " in the bucket"
	if s.MaxUserBytes > 0 {
		text += fmt.Sprintf("; with other workspaces %s of at most %s", terminal.Size(s.UserBytes), terminal.Size(s.MaxUserBytes))
		if s.UserBytes >= s.MaxUserBytes {
			text += ", so no backup is made on schedule or request"
		}
	}
	return text
}

// backupTime is the time of the home that a backup has.
func backupTime(b api.Backup) time.Time {
	if b.BegunAt != nil {
		return *b.BegunAt
	}
	return b.CreatedAt
}

// backupReason is why a backup was made: its note, if it has one.
func backupReason(note, cause string) string {
	if note != "" {
		return note
	}
	reasons := map[string]string{"schedule": "scheduled", "request": "requested", "archive": "before an archive", "restore": "before a restore", "image": "before another image", "hand_over": "before a hand-over"}
	return inWords(reasons, cause)
}

// backupState is what is to be known of a backup besides its figures; empty for a complete one.
func backupState(b api.Backup) string {
	switch {
	case b.State == "failed":
		return "failed: " + b.Error
	case b.State != "done":
		return b.State
	case b.Damage != "":
		return "damaged: " + b.Damage
	case b.Problems == 1:
		return "1 file could not be read"
	case b.Problems > 1:
		return fmt.Sprintf("%d files could not be read", b.Problems)
	}
	return ""
}

// idLength is how many characters of the ids tell the backups apart: at least 8.
func idLength(list []api.Backup) int {
	for n := 8; ; n++ {
		seen := map[string]bool{}
		for _, b := range list {
			seen[b.ID[:min(n, len(b.ID))]] = true
		}
		if len(seen) == len(list) || n >= 36 {
			return n
		}
	}
}

// chooseBackup returns the complete backup that a user names by its id or its beginning, by its note,
// or by a time: then it is the last one not after it. Of several with the same note it is the latest;
// empty: the latest of all. list is newest first.
func chooseBackup(list []api.Backup, name string, now time.Time) (api.Backup, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(b api.Backup) bool { return b.State != "done" })
	if len(list) == 0 {
		return api.Backup{}, terminal.NotFound("there is no backup yet; make one with codehub checkpoint")
	}
	if name == "" {
		return list[0], nil
	}
	if len(name) >= 4 {
		var found []api.Backup
		for _, b := range list {
			if strings.HasPrefix(b.ID, strings.ToLower(name)) {
				found = append(found, b)
			}
		}
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			return api.Backup{}, fmt.Errorf("several backups have an id that begins with %q; give more of it", name)
		}
	}
	for _, b := range list {
		if b.Note == name || slices.Contains(strings.Split(b.Note, "; "), name) {
			return b, nil
		}
	}
	at, ok := pastTime(name, now)
	if !ok {
		return api.Backup{}, terminal.NotFound("no backup has the id or note %q, and it is not a time like 2h or 2026-12-24 18:30; list them with codehub backups", name)
	}
	for _, b := range list {
		if !backupTime(b).After(at) {
			return b, nil
		}
	}
	return api.Backup{}, terminal.NotFound("there is no backup of %s or before; the first one is of %s", terminal.Time(at), terminal.Time(backupTime(list[len(list)-1])))
}

// pastTime reads a time, or how long ago it is, in the zone of now.
func pastTime(text string, now time.Time) (at time.Time, ok bool) {
	var s span
	if s.UnmarshalText([]byte(strings.TrimSuffix(text, " ago"))) == nil {
		return now.Add(-time.Duration(s)), true
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02T15:04"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

type checkpointCmd struct {
	onThisWorkspace
	Note string `short:"m" name:"note" placeholder:"NOTE" help:"What the backup is for, like: before the upgrade."`
	Wait bool   `negatable:"" default:"true" help:"Wait until the backup is complete."`
}

// Help says what a checkpoint is.
func (checkpointCmd) Help() string {
	return `The backup has the files of the home as they are now; the workspace keeps running. Programs inside the workspace can use it too. codehub restore --from NOTE goes back to it.`
}

func (cmd checkpointCmd) Run(ctx context.Context, k *kong.Context) error {
	return cmd.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		b, err := makeBackup(ctx, k, c, id, cmd.Note, cmd.Wait)
		return b, b.ID, err
	})
}

// makeBackup backs up the home of a workspace. With wait, the backup is complete, and made after the
// call: one that is being made is awaited first.
func makeBackup(ctx context.Context, k *kong.Context, c *client.Client, id, note string, wait bool) (api.Backup, error) {
	m := newMeter(k.Stderr)
	defer m.clear()
	b, err := c.RequestBackup(ctx, id, note)
	for wait && client.CodeOf(err) == "operation_in_progress" {
		m.show("waiting for the backup that is being made")
		if err := pauseFor(ctx, backupPoll); err != nil {
			return b, err
		}
		b, err = c.RequestBackup(ctx, id, note)
	}
	if err != nil || !wait {
		return b, err
	}
	requested := b.CreatedAt
	for b.State == "waiting" || b.State == "running" {
		m.show("backup", b.State)
		if err := pauseFor(ctx, backupPoll); err != nil {
			return b, err
		}
		now, err := c.Backup(ctx, id, b.ID)
		if client.CodeOf(err) == "not_found" {
			return unchangedBackup(ctx, c, id, requested)
		}
		if err != nil {
			return b, err
		}
		b = now
	}
	if b.State != "done" {
		return b, fmt.Errorf("the backup failed: %s", terminal.Plain(b.Error))
	}
	return b, nil
}

// unchangedBackup returns the backup that has the home as it was at a time, because nothing had changed
// since.
func unchangedBackup(ctx context.Context, c *client.Client, id string, at time.Time) (api.Backup, error) {
	list, err := c.Backups(ctx, id)
	if err != nil {
		return api.Backup{}, err
	}
	for _, b := range list {
		if b.State == "done" && b.UnchangedAt != nil && !b.UnchangedAt.Before(at) {
			return b, nil
		}
	}
	return api.Backup{}, errors.New("the backup was not made; try again")
}

// pauseFor waits for d, or for the end of ctx.
func pauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errWaitEnded
	}
}

// backupOf returns the backup that a user names, or a new one without a name.
func backupOf(ctx context.Context, k *kong.Context, c *client.Client, id, name, note string) (api.Backup, error) {
	if name == "" {
		return makeBackup(ctx, k, c, id, note, true)
	}
	list, err := c.Backups(ctx, id)
	if err != nil {
		return api.Backup{}, err
	}
	return chooseBackup(list, name, time.Now())
}

// goBack replaces the home of a workspace by that of a backup.
func (r restoreCmd) goBack(ctx context.Context, k *kong.Context, c *client.Client, id string) (any, string, error) {
	list, err := c.Backups(ctx, id)
	if err != nil {
		return nil, "", err
	}
	from, err := chooseBackup(list, r.From, time.Now())
	if err != nil {
		return nil, "", err
	}
	if err := confirmRestore(k, r.Workspace, from, r.Yes); err != nil {
		return nil, "", err
	}
	w, err := c.RestoreBackup(ctx, id, api.RestoreBackup{Backup: from.ID, Start: r.Start})
	if err != nil {
		return nil, "", err
	}
	if r.Wait {
		if w, err = awaitRestored(ctx, k, c, w, from); err != nil {
			return nil, "", err
		}
		_, text, _ := outcome(w, nil)
		return w, text + ", with the home of " + terminal.Time(backupTime(from)), nil
	}
	return w, fmt.Sprintf("%s   goes back to %s; the present home is archived first", terminal.Plain(w.Name), terminal.Time(backupTime(from))), nil
}

// confirmRestore asks whether a backup may replace the home of a workspace, unless yes is set.
func confirmRestore(k *kong.Context, workspace string, from api.Backup, yes bool) error {
	if yes {
		return nil
	}
	if !terminal.Interactive() {
		return fmt.Errorf("nothing was restored: no terminal to ask in; give --yes")
	}
	question := fmt.Sprintf("Replace the home of %q by its backup of %s (%s)? A running workspace stops, and the present home is archived first. [y/N] ",
		workspace, terminal.Time(backupTime(from)), terminal.Plain(backupReason(from.Note, from.Cause)))
	text, err := terminal.Ask(k.Stderr, bufio.NewReader(os.Stdin), question)
	if err != nil || !strings.EqualFold(strings.TrimSpace(text), "y") {
		return fmt.Errorf("nothing was restored")
	}
	return nil
}

// awaitRestored waits until a backup has replaced the home of a workspace.
func awaitRestored(ctx context.Context, k *kong.Context, c *client.Client, w api.Workspace, from api.Backup) (api.Workspace, error) {
	m := newMeter(k.Stderr)
	defer m.clear()
	w, err := c.Wait(ctx, w.ID, func(now api.Workspace) bool {
		m.watch(now)
		return now.RestoreFrom == nil || now.DeletedAt != nil
	})
	if err != nil {
		if ctx.Err() != nil {
			err = errWaitEnded
		}
		return w, err
	}
	if w.RestoredFrom == nil || *w.RestoredFrom != from.ID {
		return w, fmt.Errorf("%s did not go back to the backup, and keeps its home", terminal.Plain(w.Name))
	}
	return reach(ctx, k, c, w, w.DesiredState)
}

type forkCmd struct {
	onWorkspace
	From    string `name:"from" placeholder:"BACKUP" xor:"from" help:"Id, note or time of the backup (default: a new one)."`
	Archive string `name:"archive" xor:"from" placeholder:"ARCHIVE" help:"ID of an archive, from codehub archives (default for an archived workspace: its archive)."`
	Count   int    `name:"count" default:"1" placeholder:"N" help:"How many workspaces to create."`
	Name    string `name:"name" placeholder:"NAME" help:"Name of the first one (default: NAME with a number)."`
	Start   bool   `short:"s" help:"Also start them."`
	Wait    bool   `short:"w" help:"Wait until they run."`
}

// Help says what the new workspaces have.
func (forkCmd) Help() string {
	return `The new workspaces have the settings of the workspace, and its files as in the backup or the archive. Changes in one do not reach the others.`
}

func (f forkCmd) Run(ctx context.Context, k *kong.Context) error {
	if f.Wait && !f.Start {
		return terminal.Exit(terminal.ExitUsage, errors.New("--wait needs --start"))
	}
	return f.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		from, err := f.source(ctx, k, c, id)
		if err != nil {
			return nil, "", err
		}
		list, err := c.Fork(ctx, id, api.Fork{Backup: from, Count: f.Count, Name: f.Name, Start: f.Start})
		for i := range list {
			if err == nil && f.Wait {
				list[i], err = reach(ctx, k, c, list[i], "RUNNING")
			}
		}
		return list, workspaceTable(list, time.Now()), err
	})
}

// source returns what api.Fork names as its backup.
func (f forkCmd) source(ctx context.Context, k *kong.Context, c *client.Client, id string) (string, error) {
	if f.Archive != "" {
		return f.Archive, nil
	}
	if f.From == "" {
		w, err := c.Get(ctx, id)
		if err != nil || w.Phase == "ARCHIVED" {
			return "", err
		}
	}
	from, err := backupOf(ctx, k, c, id, f.From, "before a fork")
	return from.ID, err
}

type diffCmd struct {
	onWorkspace
	From string `name:"from" placeholder:"BACKUP" help:"Id, note or time of the earlier backup (default: the one before --to)."`
	To   string `name:"to" placeholder:"BACKUP" help:"Id, note or time of the later backup (default: a new one)."`
}

// Help explains the letters.
func (diffCmd) Help() string {
	return `Lists the files that were added (A), modified (M) and removed (R) between two backups. Without --to, a new backup is made and compared.`
}

func (d diffCmd) Run(ctx context.Context, k *kong.Context) error {
	return d.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		since := ""
		if d.From != "" {
			from, err := backupOf(ctx, k, c, id, d.From, "")
			if err != nil {
				return nil, "", err
			}
			since = from.ID
		}
		to, err := backupOf(ctx, k, c, id, d.To, "")
		if err != nil {
			return nil, "", err
		}
		changes, err := c.BackupChanges(ctx, id, to.ID, since)
		return changes, changesText(changes), err
	})
}

// changeLetters are those of Git.
var changeLetters = map[string]string{api.FileAdded: "A", api.FileModified: "M", api.FileRemoved: "R"}

// changesText lists changed files, as Git does.
func changesText(c api.BackupChanges) string {
	rows := [][]string{}
	for _, f := range c.Files {
		letter, size := changeLetters[f.Change], ""
		if f.Kind == "file" && f.Change != api.FileRemoved {
			size = terminal.Size(f.Size)
		}
		rows = append(rows, []string{letter, size, f.Path})
	}
	text := fmt.Sprintf("%d added, %d modified, %d removed", c.Added, c.Modified, c.Removed)
	if c.More {
		text += fmt.Sprintf("; these are %d of them", len(c.Files))
	}
	if len(rows) > 0 {
		text = terminal.Table(rows) + text
	}
	return text
}
