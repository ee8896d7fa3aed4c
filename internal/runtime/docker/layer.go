package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"codehub/internal/runtime"
)

// nameHere puts files of /etc into the layer of a container that was created and never
// started. A server that is root on Docker's host saves the time in which Docker copies
// them: for each copy Docker 20.10 starts a process. It returns false if Docker has to copy
// them: with other storage than overlay2, and wherever the layer is not as expected.
func (r *Runtime) nameHere(ctx context.Context, container string, files map[string]string) (done bool, err error) {
	if os.Geteuid() != 0 || r.remote || !r.engine(ctx).keepsUsers {
		return false, nil
	}
	found, err := r.api.ContainerInspect(ctx, container, client.ContainerInspectOptions{})
	if err != nil {
		return false, wrapError(ctx, "inspect container", err)
	}
	driver := found.Container.GraphDriver
	if driver == nil || driver.Name != "overlay2" {
		return false, nil
	}
	upper := driver.Data["UpperDir"]
	below, _, _ := strings.Cut(driver.Data["LowerDir"], ":")
	if !filepath.IsAbs(below) || !r.isLocal(upper) {
		return false, nil
	}
	if err := runtime.Fenced(ctx); err != nil {
		return false, fmt.Errorf("%w: %w", runtime.ErrUnreachable, err)
	}
	if err := putInEtc(upper, below, files); err != nil {
		r.log.Debug("Docker copies the names of the workspace's user", "err", err)
		return false, nil
	}
	return true, nil
}

// putInEtc makes the folder etc in the upper folder of an overlay, with the files. Its
// owner, mode and times are those of etc in below, the layer under it, of which Docker
// makes the files in /etc of each container; so what is seen of the layers below stays.
// The folder appears complete or not at all. An error leaves nothing behind.
func putInEtc(upper, below string, files map[string]string) (err error) {
	layer, err := openFolder(unix.AT_FDCWD, filepath.Dir(upper))
	if err != nil {
		return err
	}
	defer layer.Close()
	top, err := openFolder(int(layer.Fd()), filepath.Base(upper))
	if err != nil {
		return err
	}
	defer top.Close()
	under, err := openFolder(unix.AT_FDCWD, below)
	if err != nil {
		return err
	}
	defer under.Close()
	model, err := openFolder(int(under.Fd()), "etc")
	if err != nil {
		return err
	}
	defer model.Close()
	if err := isPlain(model); err != nil {
		return err
	}

	const part = "codehub-etc" // next to the upper folder, where no container sees it
	if err := unix.Mkdirat(int(layer.Fd()), part, 0o700); err != nil {
		return fmt.Errorf("make a folder in the layer: %w", err)
	}
	made, err := openFolder(int(layer.Fd()), part)
	if err != nil {
		return err
	}
	defer made.Close()
	defer func() {
		if err == nil {
			return
		}
		for name := range files {
			err = errors.Join(err, ignoreMissing(unix.Unlinkat(int(made.Fd()), name, 0)))
		}
		err = errors.Join(err, unix.Unlinkat(int(layer.Fd()), part, unix.AT_REMOVEDIR))
	}()
	for name, content := range files {
		if err := putFileIn(made, name, content); err != nil {
			return err
		}
	}
	if err := likeFolder(made, model); err != nil {
		return err
	}
	return os.NewSyscallError("rename", unix.Renameat2(int(layer.Fd()), part, int(top.Fd()), "etc", unix.RENAME_NOREPLACE))
}

// openFolder opens a folder, and fails at a link.
func openFolder(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// isPlain fails if a folder of a layer has attributes other than the overlay's own, such as
// an ACL, or one with which the overlay gives it another meaning.
func isPlain(folder *os.File) error {
	list := make([]byte, 4096)
	n, err := unix.Flistxattr(int(folder.Fd()), list)
	if err != nil {
		return fmt.Errorf("list attributes of %s: %w", folder.Name(), err)
	}
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		if !slices.Contains([]string{"", "trusted.overlay.origin", "trusted.overlay.impure"}, name) {
			return fmt.Errorf("%s has the attribute %s", folder.Name(), name)
		}
	}
	return nil
}

func putFileIn(folder *os.File, name, content string) error {
	fd, err := unix.Openat(int(folder.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Chown(0, 0), f.Chmod(0o644), f.Close())
}

// likeFolder gives a folder the owner, mode and times of another one.
func likeFolder(folder, model *os.File) error {
	var s unix.Stat_t
	if err := unix.Fstat(int(model.Fd()), &s); err != nil {
		return err
	}
	fd := int(folder.Fd())
	return errors.Join(unix.Fchown(fd, int(s.Uid), int(s.Gid)), unix.Fchmod(fd, s.Mode&0o7777),
		unix.UtimesNanoAt(fd, ".", []unix.Timespec{s.Atim, s.Mtim}, 0))
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
