// Package helper runs codehub's own executable in containers on Docker's host, and follows
// what they print.
package helper

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// Helper is a container from an image that holds only the codehub executable.
// It does what this process may not do itself on Docker's host; see docker.HelperMain.
type Helper struct {
	*engine.Engine
	binary string
	image  executable
}

// New returns the helper whose executable is in the file binary.
func New(e *engine.Engine, binary string) *Helper { return &Helper{Engine: e, binary: binary} }

// executable caches the image of the executable.
type executable struct {
	mu   sync.Mutex
	ref  string
	sum  string // SHA-256 of the executable, in hex
	size int64
	time time.Time
}

// Run is one run of the helper.
type Run struct {
	Args        []string
	Image       string // ID of an image whose files it works on; empty: the helper's own
	HostNetwork bool   // false: no network
	MappedUsers bool   // see Confined
	Caps        []string
	Mounts      []mount.Mount
	Files       func(*tar.Writer) error // writes what it finds at FilesDir; nil: nothing
	Line        func([]byte)            // called for each line that it prints; nil: not needed
}

// FilesDir is where the helper finds Run.Files.
const FilesDir = "/files"

// Run runs the helper to its end. Its standard error becomes the error.
func (h *Helper) Run(ctx context.Context, run Run) error {
	ref, err := h.Image(ctx)
	if err != nil {
		return err
	}
	var entrypoint []string // of the helper's image
	if run.Image != "" {
		const executable = "codehub"
		ref, entrypoint = run.Image, []string{FilesDir + "/" + executable, Command}
		more := run.Files
		run.Files = func(tw *tar.Writer) error {
			if err := h.pack(tw, executable); err != nil || more == nil {
				return err
			}
			return more(tw)
		}
	}
	if run.Files != nil {
		// It is removed with the container.
		run.Mounts = append(run.Mounts, mount.Mount{
			Type: mount.TypeVolume, Target: FilesDir,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: h.Labels(engine.RoleScratch, "", "")},
		})
	}
	opts := Confined{
		Name: h.Names.Helper + "-" + engine.RandomHex(4), Image: ref, Entrypoint: entrypoint, Cmd: run.Args,
		Labels: h.Labels(engine.RoleHelper, "", ""), Caps: run.Caps, Mounts: run.Mounts, MappedUsers: run.MappedUsers,
	}.Options()
	if run.HostNetwork {
		opts.Config.NetworkDisabled, opts.HostConfig.NetworkMode = false, "host"
	}
	made, err := h.API.ContainerCreate(ctx, opts)
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("the helper's image was removed concurrently")
	}
	if err != nil {
		return engine.WrapError(ctx, "create helper", err)
	}
	defer h.Abandon(ctx, made.ID)
	if run.Files != nil {
		if err := h.copyTo(ctx, made.ID, FilesDir, run.Files); err != nil {
			return err
		}
	}
	if err := h.Await(ctx, made.ID, run.Line); err != nil {
		return fmt.Errorf("helper %s: %w", run.Args[0], err)
	}
	return nil
}

// Await starts a created container and waits for its end. It calls line, which may be nil, for
// each line that the container prints. An end with an error is runtime.ErrNoSpace if the disk
// that the container works on is full.
func (h *Helper) Await(ctx context.Context, id string, line func([]byte)) error {
	wait, err := h.start(ctx, id)
	if err != nil {
		return err
	}
	if line != nil {
		listened := h.listen(ctx, id, line)
		defer func() { <-listened }()
	}
	select {
	case err := <-wait.Error:
		return engine.WrapError(ctx, "wait for helper", err)
	case end := <-wait.Result:
		if end.StatusCode == 0 {
			return nil
		}
		return Failure(fmt.Errorf("ended with code %d: %s", end.StatusCode, h.output(ctx, id)))
	}
}

// start starts a created helper, and returns what yields its end.
func (h *Helper) start(ctx context.Context, id string) (client.ContainerWaitResult, error) {
	wait := h.API.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	_, err := h.API.ContainerStart(ctx, id, client.ContainerStartOptions{})
	if err != nil {
		// The removal of the container ends the wait, for whose result the library keeps a
		// goroutine until it is read.
		go func() {
			select {
			case <-wait.Result:
			case <-wait.Error:
			}
		}()
		return wait, engine.WrapError(ctx, "start helper", err)
	}
	return wait, nil
}

// Failure returns the error of a helper, which is runtime.ErrNoSpace if the disk that it
// works on is full.
func Failure(err error) error {
	if engine.NoSpace(err) {
		return fmt.Errorf("%w: %w", runtime.ErrNoSpace, err)
	}
	return err
}

// copyTo copies the files that fill writes to a folder of a container.
func (h *Helper) copyTo(ctx context.Context, id, folder string, fill func(*tar.Writer) error) error {
	pr, done := tarPipe(fill)
	_, err := h.API.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: folder, Content: pr})
	pr.Close()
	if own := <-done; own != nil {
		return own // Docker repeats it as an error of its own
	}
	return engine.WrapError(ctx, "copy files to the helper", err)
}

// pack writes the helper's executable under a name.
func (h *Helper) pack(tw *tar.Writer, name string) error {
	f, err := os.Open(h.binary)
	if err != nil {
		return fmt.Errorf("read the helper's executable: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read the helper's executable: %w", err)
	}
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o555, Size: info.Size()}); err != nil {
		return err
	}
	if _, err := io.Copy(tw, f); err != nil {
		return fmt.Errorf("read the helper's executable: %w", err)
	}
	return nil
}

// tarPipe returns a reader of the archive that fill writes, and the error of fill, which
// arrives once the reader is at its end or closed.
func tarPipe(fill func(*tar.Writer) error) (*io.PipeReader, <-chan error) {
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		tw := tar.NewWriter(pw)
		err := fill(tw)
		pw.CloseWithError(errors.Join(err, tw.Close()))
		if errors.Is(err, io.ErrClosedPipe) {
			err = nil
		}
		done <- err
	}()
	return pr, done
}

// listen calls line for each line that a helper prints. The channel is closed at
// the end of the output.
func (h *Helper) listen(ctx context.Context, id string, line func([]byte)) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		given := 0
		if err := h.readReport(ctx, id, true, &given, line, &outputTail{log: func(string) {}}); err != nil {
			h.Log.Debug("read helper progress failed", "container", id, "err", err)
		}
	}()
	return done
}

// output returns the end of what a helper has printed.
func (h *Helper) output(ctx context.Context, id string) string {
	stream, err := h.API.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "20"})
	if err != nil {
		return engine.WrapError(ctx, "read logs", err).Error()
	}
	defer stream.Close()
	var b bytes.Buffer
	if _, err := stdcopy.StdCopy(&b, &b, io.LimitReader(stream, 16<<10)); err != nil && b.Len() == 0 {
		return err.Error()
	}
	return workspace.Cut(strings.TrimSpace(b.String()))
}

// Image returns the image of the current executable and builds it if it
// is missing.
func (h *Helper) Image(ctx context.Context) (string, error) {
	h.image.mu.Lock()
	defer h.image.mu.Unlock()
	f, err := os.Open(h.binary)
	if err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	if h.image.ref == "" || h.image.size != info.Size() || !h.image.time.Equal(info.ModTime()) {
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return "", fmt.Errorf("read the helper's executable: %w", err)
		}
		h.image.sum = hex.EncodeToString(sum.Sum(nil))
		h.image.ref = h.Names.Helper + ":" + h.image.sum[:16]
		h.image.size, h.image.time = info.Size(), info.ModTime()
	}
	_, err = h.API.ImageInspect(ctx, h.image.ref)
	if err == nil {
		return h.image.ref, nil
	}
	if !errdefs.IsNotFound(err) {
		return "", engine.WrapError(ctx, "inspect helper image", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	if err := h.importSelf(ctx, h.image.ref, f, info.Size()); err != nil {
		return "", err
	}
	h.RemoveOld(ctx, h.image.ref)
	return h.image.ref, nil
}

// Ref returns the image of the executable, if it is known.
func (h *Helper) Ref() string {
	h.image.mu.Lock()
	defer h.image.mu.Unlock()
	return h.image.ref
}

// Digest returns the digest of the executable of the last Image.
func (h *Helper) Digest() string {
	h.image.mu.Lock()
	defer h.image.mu.Unlock()
	return h.image.sum
}

func (h *Helper) importSelf(ctx context.Context, ref string, f io.Reader, size int64) error {
	entrypoint := `ENTRYPOINT ["/codehub","` + Command + `"]`
	return h.ImportImage(ctx, ref, engine.RoleHelper, []string{entrypoint}, func(tw *tar.Writer) error {
		if err := tw.WriteHeader(&tar.Header{Name: "codehub", Mode: 0o755, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(tw, f, size)
		return err
	})
}

// ImportImage creates an image from the files that fill writes.
func (h *Helper) ImportImage(ctx context.Context, ref, role string, changes []string, fill func(*tar.Writer) error) error {
	for k, v := range h.Labels(role, "", "") {
		quoted, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode label: %w", err)
		}
		changes = append(changes, fmt.Sprintf("LABEL %s=%s", k, quoted))
	}
	pr, done := tarPipe(fill)
	defer func() {
		pr.Close()
		<-done // the body is read from the caller's reader
	}()
	res, err := h.API.ImageImport(ctx, client.ImageImportSource{Source: pr, SourceName: "-"}, ref,
		client.ImageImportOptions{Changes: changes, Message: "codehub's " + role})
	if err != nil {
		return engine.WrapError(ctx, "import "+role+" image", err)
	}
	defer res.Close()
	for dec := json.NewDecoder(res); ; {
		var m struct {
			Error string `json:"error"`
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return engine.WrapError(ctx, "import "+role+" image", err)
		case m.Error != "":
			return engine.WrapError(ctx, "import "+role+" image", errors.New(m.Error))
		}
	}
}

// RemoveOld removes the images of earlier executables. Docker keeps those
// that a storage job uses; the next sweep tries again.
func (h *Helper) RemoveOld(ctx context.Context, current string) {
	if current == "" {
		return // not known yet which images are old
	}
	list, err := h.API.ImageList(ctx, client.ImageListOptions{Filters: h.Filter(engine.RoleHelper)})
	if err != nil {
		h.Log.Debug("list old helper images failed", "err", err)
		return
	}
	for _, img := range list.Items {
		for _, tag := range img.RepoTags {
			if tag == current {
				continue
			}
			if _, err := h.API.ImageRemove(ctx, tag, client.ImageRemoveOptions{PruneChildren: true}); err != nil {
				h.Log.Debug("old helper image kept", "image", tag, "err", err)
			}
		}
	}
}

// Printed returns the last line of a helper's standard output, or "" if it cannot
// be read.
func (h *Helper) Printed(ctx context.Context, id string) string {
	stream, err := h.API.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, Tail: "1"})
	if err != nil {
		h.Log.Debug("read helper output failed", "container", id, "err", err)
		return ""
	}
	defer stream.Close()
	var b bytes.Buffer
	if _, err := stdcopy.StdCopy(&b, io.Discard, io.LimitReader(stream, 16<<10)); err != nil {
		h.Log.Debug("read helper output failed", "container", id, "err", err)
		return ""
	}
	return strings.TrimSpace(b.String())
}
