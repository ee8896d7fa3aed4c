package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// putBack puts a file or folder of a backup into the running workspace: to its path, or another one. It
// asks before it replaces what is there, unless yes is true.
func putBack(ctx context.Context, k *kong.Context, c *client.Client, id, backup string, in api.PutBack, yes bool) (any, string, error) {
	in.Replace = yes
	done, err := c.PutBack(ctx, id, backup, in)
	if client.CodeOf(err) == "file_exists" && !yes {
		if err := confirmReplace(k, in); err != nil {
			return nil, "", err
		}
		in.Replace = true
		done, err = c.PutBack(ctx, id, backup, in)
	}
	if err != nil {
		return nil, "", err
	}
	text := terminal.Plain(done.Path) + "   put back"
	if done.Kept != "" {
		text += "; the former one is " + terminal.Plain(done.Kept)
	}
	return done, text, nil
}

func confirmReplace(k *kong.Context, in api.PutBack) error {
	target := in.To
	if target == "" {
		target = in.Path
	}
	if !terminal.Interactive() {
		return fmt.Errorf("%s exists, and there is no terminal to ask in; give --yes to replace it, or another path with --to", terminal.Plain(target))
	}
	question := fmt.Sprintf("%s exists. Replace it? The present one is kept next to it as %s.before-restore-TIME. [y/N] ", terminal.Plain(target), terminal.Plain(path.Base(target)))
	text, err := terminal.Ask(k.Stderr, bufio.NewReader(os.Stdin), question)
	if err != nil || !strings.EqualFold(strings.TrimSpace(text), "y") {
		return errors.New("nothing was put back")
	}
	return nil
}

// openBackup opens a file of a backup, or a folder as a tar, whose size is unknown.
func openBackup(ctx context.Context, c *client.Client, id, backup, name string) (from *client.Download, folder bool, err error) {
	from, err = c.DownloadBackupFile(ctx, id, backup, name)
	if client.CodeOf(err) != "invalid_request" {
		return from, false, err
	}
	body, err := c.DownloadBackupTar(ctx, id, backup, name)
	if err != nil {
		return nil, true, err
	}
	return &client.Download{Body: body, Size: -1}, true, nil
}
