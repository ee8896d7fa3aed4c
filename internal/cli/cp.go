package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// cpCmd copies by tar in the workspace, through the same connection as exec.
type cpCmd struct {
	serverFlags
	From string `arg:"" help:"What to copy: a file or folder here, or WORKSPACE:PATH."`
	To   string `arg:"" help:"Where to: a path here, or WORKSPACE:PATH. In a folder that exists the name stays."`
}

// Help describes the command beyond its flags.
func (cpCmd) Help() string {
	return "Folders are copied with all that is in them. A path in a workspace is relative to its home. " +
		"The workspace is started if it is stopped; its image needs tar and sh. For copies that go on after an interruption use rsync (codehub config-ssh)."
}

// remotePath splits WORKSPACE:PATH. A path of Windows, such as C:\x, is local.
func remotePath(arg string) (name, at string, remote bool) {
	name, at, remote = strings.Cut(arg, ":")
	if !remote || name == "" || name[0] == '.' || name[0] == '/' || runtime.GOOS == "windows" && len(name) == 1 {
		return "", arg, false
	}
	if at == "" {
		at = "."
	}
	return name, at, true
}

func (cmd cpCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	from, fromPath, down := remotePath(cmd.From)
	to, toPath, up := remotePath(cmd.To)
	if down == up {
		return terminal.Exit(terminal.ExitUsage, errors.New("name a workspace in one of the two paths, as in: codehub cp notes.txt WORKSPACE:notes.txt"))
	}
	w, err := resolveEnterable(ctx, c, from+to)
	if err != nil {
		return err
	}
	r := remote{c: c, id: w.ID, status: newMeter(k.Stderr)}
	defer r.status.clear()
	if down {
		return r.fetch(ctx, fromPath, toPath)
	}
	return r.send(ctx, fromPath, toPath)
}

// remote runs commands in a workspace for a copy.
type remote struct {
	c      *client.Client
	id     string
	status *meter
}

// run runs a command with in as its input, and returns its exit status. What it says is in the
// error.
func (r remote) run(ctx context.Context, in io.Reader, out io.Writer, args ...string) (int, error) {
	x, err := r.c.Exec(ctx, r.id, api.Exec{Args: args})
	if err != nil {
		return 0, err
	}
	defer x.Close()
	go func() {
		select {
		case <-x.Started():
		case <-ctx.Done():
			return
		}
		// A command that has ended reads no more. One that still reads must not wait.
		if x.Stdin(ctx, in) != nil {
			x.Close()
		}
	}()
	var said bytes.Buffer
	code, err := x.Run(ctx, out, &said, r.status.watch)
	r.status.clear()
	switch text := strings.TrimSpace(said.String()); {
	case client.CodeOf(err) == "command_not_started":
		return code, errors.New("the image of the workspace has no tar or no sh, which codehub cp needs")
	case err != nil:
		return code, err
	case code > 1 && text != "":
		return code, errors.New(terminal.Plain(text))
	}
	return code, nil
}

// isFolder reports whether a path in the workspace is a folder.
func (r remote) isFolder(ctx context.Context, at string) (bool, error) {
	code, err := r.run(ctx, strings.NewReader(""), io.Discard, "sh", "-c", `[ -d "$1" ]`, "sh", at)
	return code == 0, err
}

// send copies a file or folder of this machine into the workspace.
func (r remote) send(ctx context.Context, from, to string) error {
	from = filepath.Clean(from)
	if _, err := os.Stat(from); err != nil {
		return err
	}
	dir, name := path.Split(to)
	folder, err := r.isFolder(ctx, to)
	if err != nil {
		return err
	}
	if folder || name == "" {
		abs, err := filepath.Abs(from)
		if err != nil {
			return err
		}
		dir, name = to, filepath.Base(abs)
	}
	if dir == "" {
		dir = "."
	}
	in, out := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(out, from, name)
		out.CloseWithError(err)
		packed <- err
	}()
	code, err := r.run(ctx, in, io.Discard, "sh", "-c", `mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -`, "sh", dir)
	in.Close()
	if unread := <-packed; unread != nil && !errors.Is(unread, io.ErrClosedPipe) {
		return unread
	}
	if err == nil && code != 0 {
		err = fmt.Errorf("the workspace could not write %s", to)
	}
	return err
}

// pack writes a file or folder as a tar stream, in which it has another name.
func pack(to io.Writer, from, name string) error {
	t := tar.NewWriter(to)
	err := filepath.WalkDir(from, func(at string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if at == from && info.Mode()&fs.ModeSymlink != 0 {
			if info, err = os.Stat(at); err != nil {
				return err
			}
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(at); err != nil {
				return err
			}
		} else if !info.IsDir() && !info.Mode().IsRegular() {
			return nil // sockets and devices are not copied
		}
		h, err := tar.FileInfoHeader(info, filepath.ToSlash(link))
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, at)
		if err != nil {
			return err
		}
		h.Name = path.Join(name, filepath.ToSlash(rel))
		h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
		if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(at)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.CopyN(t, f, h.Size)
		return err
	})
	return errors.Join(err, t.Close())
}

// fetch copies a file or folder of the workspace to this machine.
func (r remote) fetch(ctx context.Context, from, to string) error {
	if from = path.Clean(from); from == "." || from == "/" || strings.HasSuffix(from, "..") {
		return errors.New("name a file or a folder in the workspace")
	}
	dir, name := filepath.Split(filepath.Clean(to))
	if info, err := os.Stat(to); err == nil && info.IsDir() || to != "" && os.IsPathSeparator(to[len(to)-1]) {
		dir, name = to, path.Base(from)
	}
	if dir == "" {
		dir = "."
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	in, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := unpack(dir, in, path.Base(from), name)
		in.CloseWithError(err)
		done <- err
	}()
	code, err := r.run(ctx, strings.NewReader(""), out, "tar", "-C", path.Dir(from), "-cf", "-", "--", path.Base(from))
	if err == nil && code != 0 {
		err = fmt.Errorf("the workspace could not read all of %s", from)
	}
	out.CloseWithError(err)
	if unpacked := <-done; err == nil {
		err = unpacked
	}
	return err
}

// unpack writes the files of a workspace's tar stream into dir. A hostile stream can write nothing
// outside of it: a link is made and never followed. The entry old gets the name name.
func unpack(dir string, from io.Reader, old, name string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	t := tar.NewReader(from)
	var folders []*tar.Header // their times are set at the end
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.Copy(io.Discard, from) // the rest of the last block
			break
		}
		if err != nil {
			return err
		}
		at := path.Clean(h.Name)
		rest, ok := strings.CutPrefix(at, old)
		if !ok || rest != "" && rest[0] != '/' {
			return fmt.Errorf("the workspace sent %q, which was not asked for", h.Name)
		}
		h.Name = name + rest
		if first, ok := strings.CutPrefix(path.Clean(h.Linkname), old+"/"); ok && h.Typeflag == tar.TypeLink {
			h.Linkname = path.Join(name, first)
		}
		if err := unpackEntry(root, t, h); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			folders = append(folders, h)
		}
	}
	for _, h := range folders {
		_ = root.Chtimes(h.Name, h.ModTime, h.ModTime)
	}
	return nil
}

func unpackEntry(root *os.Root, content io.Reader, h *tar.Header) error {
	mode := h.FileInfo().Mode().Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(h.Name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeReg:
		// A file that is there is replaced rather than written into, as it may be a link.
		if err := root.Remove(h.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		_ = root.Chtimes(h.Name, h.ModTime, h.ModTime)
	case tar.TypeSymlink:
		if err := root.Remove(h.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return root.Symlink(h.Linkname, h.Name)
	case tar.TypeLink:
		return root.Link(h.Linkname, h.Name)
	}
	return nil
}
