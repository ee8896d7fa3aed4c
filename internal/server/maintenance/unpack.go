package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"codehub/internal/archive"
	"codehub/internal/cli/terminal"
	"codehub/internal/storage/store"
)

// unpackCmd restores a generation of a backup. It needs nothing but the files of the bucket.
type unpackCmd struct {
	Manifest string `arg:"" help:"Manifest of the generation. Its packs are in the folder packs next to it."`
	Dir      string `arg:"" help:"Folder to unpack into: an empty one, or one to create."`
	Archive  bool   `name:"archive" help:"Write home.tar.zst into the folder instead of the files."`
}

// Help says what needs root.
func (unpackCmd) Help() string {
	return `Everything is compared with the manifest while it is read. Files get their owners, ACLs and capabilities only if root runs the command. Without an error the folder is complete; otherwise remove it.`
}

func (c unpackCmd) Run(ctx context.Context) error {
	f, err := os.Open(c.Manifest)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := archive.ReadManifest(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.Manifest, err)
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	packs := store.NewFolder(filepath.Dir(c.Manifest)).GetRange
	if c.Archive {
		err = writeArchive(ctx, m, packs, filepath.Join(c.Dir, "home.tar.zst"))
	} else {
		_, err = m.Unpack(ctx, packs, c.Dir, archive.UnpackOptions{})
	}
	if err != nil {
		return err
	}
	t := m.Totals()
	fmt.Printf("Unpacked %d entries with %s.\n", t.Entries, terminal.Size(t.Bytes))
	return printGaps(m)
}

// writeArchive writes a generation as an archive to a new file.
func writeArchive(ctx context.Context, m *archive.Manifest, packs archive.GetRange, name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = m.Export(ctx, packs, f)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		os.Remove(name)
	}
	return err
}
