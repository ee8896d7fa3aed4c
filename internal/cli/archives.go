package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

type archiveCmd struct {
	onWorkspace
	Wait bool `short:"w" help:"Wait until it is archived."`
}

// Help describes the resulting state of the workspace.
func (archiveCmd) Help() string {
	return `The home is packed into an archive, and its disk space is freed after the archive has been verified. A running workspace is stopped first. codehub restore restores the home.`
}

func (a archiveCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		w, err := c.Want(ctx, id, "ARCHIVED", true)
		if err == nil && a.Wait {
			w, err = reach(ctx, k, c, w, "ARCHIVED")
		}
		return outcome(w, err)
	})
}

type restoreCmd struct {
	onWorkspace
	From  string `name:"from" placeholder:"BACKUP" help:"Go back to a backup: its id, its note, or a time like 2h or 2026-12-24 18:30."`
	Path  string `arg:"" optional:"" help:"With --from: put only this file or folder into the running workspace."`
	To    string `name:"to" placeholder:"PATH" help:"Where it is put (default: PATH)."`
	Start bool   `short:"s" help:"Also start the workspace."`
	Wait  bool   `short:"w" help:"Wait until it is ready."`
	Yes   bool   `short:"y" help:"Skip the confirmation, with --from."`
}

// Help describes what happens to the present home.
func (restoreCmd) Help() string {
	return `Without --from, an archived workspace gets its home back. With --from, the home is archived, and then replaced by that of a backup: of a time, the last one before it. A running workspace stops for that and starts again. With a path, only that file or folder comes back, while the workspace runs; a present one is kept next to it as NAME.before-restore-TIME.`
}

func (r restoreCmd) Run(ctx context.Context, k *kong.Context) error {
	return r.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		switch {
		case r.From == "" && (r.Path != "" || r.To != ""), r.Path == "" && r.To != "", r.Path != "" && (r.Start || r.Wait):
			return nil, "", terminal.Exit(terminal.ExitUsage, errors.New("a path needs --from, --to needs a path, and neither is used with --start and --wait"))
		case r.Path != "":
			from, err := backupOf(ctx, k, c, id, r.From, "")
			if err != nil {
				return nil, "", err
			}
			return putBack(ctx, k, c, id, from.ID, api.PutBack{Path: r.Path, To: r.To}, r.Yes)
		case r.From != "":
			return r.goBack(ctx, k, c, id)
		}
		want := "STANDBY"
		if r.Start {
			want = "RUNNING"
		}
		w, err := c.Get(ctx, id)
		if err != nil {
			return nil, "", err
		}
		// Desiring STANDBY would stop it.
		if !r.Start && w.Phase == "RUNNING" && w.Operation == "NONE" && w.DesiredState == "RUNNING" {
			return nil, "", fmt.Errorf("%s is running: there is nothing to restore", terminal.Plain(w.Name))
		}
		w, err = c.Want(ctx, id, want, true)
		if err == nil && r.Wait {
			w, err = reach(ctx, k, c, w, want)
		}
		return outcome(w, err)
	})
}

type archivesCmd struct {
	onWorkspace
	Files   string `name:"files" placeholder:"FOLDER" help:"List a folder of an archive; . for the home."`
	Archive string `name:"archive" placeholder:"ARCHIVE" help:"ID of an earlier archive, for --files."`
}

// Help names what is listed, and how to get it.
func (archivesCmd) Help() string {
	return `With --files, a folder in the current archive is listed. codehub download NAME --path PATH downloads one file.`
}

func (a archivesCmd) Run(ctx context.Context, k *kong.Context) error {
	return a.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) {
		if a.Files != "" {
			list, err := c.ArchiveFiles(ctx, id, a.Archive, a.Files)
			return list, fileTable(list), err
		}
		w, err := c.Get(ctx, id)
		if err != nil {
			return nil, "", err
		}
		list, err := c.Archives(ctx, id)
		return list, archiveTable(list, hasHome(w)), err
	})
}

// hasHome reports whether a workspace has a home in addition to its archives.
func hasHome(w api.Workspace) bool { return w.Phase == "RUNNING" || w.Phase == "STANDBY" }

// archiveTable lists archives. With a home, the newest archive is the latest state
// that was archived, and the home may have changed since.
func archiveTable(list []api.Archive, home bool) string {
	rows := [][]string{{"CREATED", "SIZE", "FILES", "NOT ARCHIVED", "ARCHIVE", ""}}
	for _, a := range list {
		about := ""
		switch {
		case a.Current && home:
			about = "latest"
		case a.Current:
			about = "current"
		case a.Found:
			about = "found"
		}
		rows = append(rows, []string{terminal.Time(a.CreatedAt), terminal.Size(a.Size), strconv.FormatInt(a.Entries, 10), skippedWords(a.Skipped), a.OpID, about})
	}
	return terminal.Table(rows)
}

// fileTable lists files of an archive.
func fileTable(list []api.ArchiveFile) string {
	rows := [][]string{{"MODE", "SIZE", "MODIFIED", "PATH"}}
	for _, f := range list {
		name, size := terminal.Plain(f.Path), terminal.Size(f.Size)
		switch {
		case f.Kind == "folder":
			name, size = name+"/", ""
		case f.Kind == "link":
			name, size = name+" -> "+terminal.Plain(f.Link), ""
		case f.SameAs != "":
			name, size = name+" = "+terminal.Plain(f.SameAs), ""
		}
		rows = append(rows, []string{f.Mode, size, terminal.Time(f.ModifiedAt), name})
	}
	return terminal.Table(rows)
}

// skippedWords formats the number of a home's entries that its archive does not have;
// empty for none.
func skippedWords(n int64) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 socket, FIFO or device"
	}
	return fmt.Sprintf("%d sockets, FIFOs or devices", n)
}
