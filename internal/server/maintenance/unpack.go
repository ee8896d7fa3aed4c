package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"

	"codehub/internal/archive"
	"codehub/internal/cli/terminal"
	"codehub/internal/storage/encryption"
	"codehub/internal/storage/store"
)

// unpackCmd restores a generation of a backup, or an archive. It needs nothing but the files of the bucket, and the key
// file if they are encrypted.
type unpackCmd struct {
	Manifest string `arg:"" help:"Manifest of the generation, whose packs are in the folder packs next to it; or home.tar.zst, with its .meta next to it."`
	Dir      string `arg:"" help:"Folder to unpack into: an empty one, or one to create."`
	Archive  bool   `name:"archive" help:"Write home.tar.zst into the folder instead of the files."`
	Key      string `name:"key" placeholder:"FILE" help:"File with the age keys of what is encrypted, as CODEHUB_ARCHIVE_KEY_FILE names. The key of the workspace is in the folder ../keys next to the manifest's."`
}

// Help says what needs root.
func (unpackCmd) Help() string {
	return `Everything is compared with the manifest while it is read. Files get their owners, ACLs and capabilities only if root runs the command. Without an error the folder is complete; otherwise remove it.`
}

func (c unpackCmd) Run(ctx context.Context) error {
	folder := store.NewFolder(filepath.Dir(c.Manifest))
	source := encryption.NewSource(func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
		if length < 0 {
			return folder.Get(ctx, name, offset)
		}
		return folder.GetRange(ctx, name, offset, length)
	}, c.keys)
	name := filepath.Base(c.Manifest)
	f, err := source.Open(ctx, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if name == "home.tar.zst" {
		return c.unpackArchive(ctx, f)
	}
	m, err := archive.ReadManifest(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.Manifest, err)
	}
	if err := c.makeDir(); err != nil {
		return err
	}
	if c.Archive {
		err = writeArchive(filepath.Join(c.Dir, "home.tar.zst"), func(w io.Writer) error {
			_, err := m.Export(ctx, source.Range, w)
			return err
		})
	} else {
		_, err = m.Unpack(ctx, source.Range, c.Dir, archive.UnpackOptions{})
	}
	if err != nil {
		return err
	}
	t := m.Totals()
	fmt.Printf("Unpacked %d entries with %s.\n", t.Entries, terminal.Size(t.Bytes))
	return printGaps(m)
}

func (c unpackCmd) makeDir() error {
	if err := os.Mkdir(c.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// unpackArchive unpacks the content of an archive, or with Archive writes it as it is.
func (c unpackCmd) unpackArchive(ctx context.Context, content io.Reader) error {
	f, err := os.Open(archive.MetaKey(c.Manifest))
	if err != nil {
		return err
	}
	defer f.Close()
	meta, err := archive.ReadMeta(f)
	if err != nil {
		return err
	}
	if err := c.makeDir(); err != nil {
		return err
	}
	if c.Archive {
		err = writeArchive(filepath.Join(c.Dir, "home.tar.zst"), func(w io.Writer) error {
			_, err := archive.Verify(ctx, io.TeeReader(content, w), meta, nil)
			return err
		})
	} else {
		_, err = archive.Unpack(ctx, content, c.Dir, archive.UnpackOptions{Expect: meta})
	}
	if err != nil {
		return err
	}
	fmt.Printf("Unpacked %d entries with %s.\n", meta.Entries, terminal.Size(meta.Bytes))
	return nil
}

// keys returns the keys of the file, and those of the workspace that they open.
func (c unpackCmd) keys(ctx context.Context, name string) ([]age.Identity, error) {
	if c.Key == "" {
		return nil, fmt.Errorf("%s is encrypted: give its keys with --key FILE", name)
	}
	file, err := encryption.ReadKeyFile(c.Key)
	if err != nil {
		return nil, err
	}
	ids := file.Identities()
	keys, err := filepath.Glob(filepath.Join(filepath.Dir(c.Manifest), "..", "keys", "*.age"))
	if err != nil {
		return nil, err
	}
	for _, name := range keys {
		key, err := readWorkspaceKey(ctx, name, file)
		if err != nil {
			return nil, err
		}
		ids = append(ids, key.Identity())
	}
	return ids, nil
}

// readWorkspaceKey reads the key of a workspace.
func readWorkspaceKey(ctx context.Context, name string, file *encryption.KeyFile) (encryption.Key, error) {
	f, err := os.Open(name)
	if err != nil {
		return encryption.Key{}, err
	}
	r, err := encryption.Open(ctx, f, name, func(context.Context, string) ([]age.Identity, error) { return file.Identities(), nil })
	if err != nil {
		return encryption.Key{}, err
	}
	defer r.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, io.LimitReader(r, 4<<10)); err != nil {
		return encryption.Key{}, err
	}
	return encryption.ParseKey(text.String())
}

// writeArchive writes an archive to a new file.
func writeArchive(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = write(f)
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
