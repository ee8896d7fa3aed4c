package image

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/moby/moby/client"

	"codehub/internal/runtime/account"
	"codehub/internal/runtime/docker/engine"
)

// The user of a workspace gets a name, a home and a shell by files that are copied into the
// container before its start.

func (i *Images) readAccounts(ctx context.Context, image string) (a account.Accounts, trusted []addedFile, err error) {
	err = i.open(ctx, image, func(f contents) error {
		if a.Passwd, _, err = f.read(ctx, "/etc/passwd"); err != nil {
			return err
		}
		if a.Group, _, err = f.read(ctx, "/etc/group"); err != nil {
			return err
		}
		if a.Shell, err = account.FindShell(a.Passwd, func(name string) (bool, error) { return f.has(ctx, name) }); err != nil {
			return err
		}
		if a.Tmp, err = f.has(ctx, "/tmp"); err != nil {
			return err
		}
		trusted, err = i.trustedFiles(ctx, f)
		return err
	})
	if err != nil {
		return account.Accounts{}, nil, fmt.Errorf("prepare the image for workspaces: %w", err)
	}
	return a, trusted, nil
}

// accountsTar returns the archive with files of /etc, with /tmp, and with other files.
func accountsTar(files map[string]string, tmp bool, others []addedFile) ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		content := files[name]
		if err := tw.WriteHeader(&tar.Header{Name: "etc/" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return nil, err
		}
		if _, err := tw.Write([]byte(content)); err != nil {
			return nil, err
		}
	}
	if tmp {
		if err := tw.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	for _, f := range others {
		header := &tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f.content))}
		if f.content == nil {
			header.Name, header.Typeflag, header.Mode = f.name+"/", tar.TypeDir, 0o755
		}
		if err := tw.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := tw.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := tw.Close()
	return b.Bytes(), err
}

// MakeReady prepares a created container for its start: its user has a name, and /tmp, and its
// programs trust the authorities of the company.
func (i *Images) MakeReady(ctx context.Context, as RunAs, uid uint32, id string) error {
	files := as.accounts.Files(uid)
	if len(files) == 0 && as.accounts.Tmp && len(as.trusted) == 0 {
		return nil
	}
	content, err := accountsTar(files, !as.accounts.Tmp, as.trusted)
	if err != nil {
		return err
	}
	_, err = i.API.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: bytes.NewReader(content)})
	return engine.WrapError(ctx, "put the workspace's files into the container", err)
}
