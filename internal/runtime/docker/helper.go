package docker

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
	"codehub/internal/runtime/docker/seccomp"
	"codehub/internal/workspace"
)

// The helper is a container from an image that holds only the codehub executable.
// It does what this process may not do itself on Docker's host; see HelperMain.

// helperImage caches the image of the executable.
type helperImage struct {
	mu   sync.Mutex
	ref  string
	sum  string // SHA-256 of the executable, in hex
	size int64
	time time.Time
}

type helperRun struct {
	args        []string
	image       string // ID of an image whose files it works on; empty: the helper's own
	hostNetwork bool   // false: no network
	mappedUsers bool   // see confined
	caps        []string
	mounts      []mount.Mount
	files       func(*tar.Writer) error // writes what it finds at helperFiles; nil: nothing
	line        func([]byte)            // called for each line that it prints; nil: not needed
}

// helperFiles is where the helper finds helperRun.files.
const helperFiles = "/files"

// runHelper runs the helper to its end. Its standard error becomes the error.
func (r *Runtime) runHelper(ctx context.Context, run helperRun) error {
	ref, err := r.ensureHelperImage(ctx)
	if err != nil {
		return err
	}
	var entrypoint []string // of the helper's image
	if run.image != "" {
		const executable = "codehub"
		ref, entrypoint = run.image, []string{helperFiles + "/" + executable, HelperCommand}
		more := run.files
		run.files = func(tw *tar.Writer) error {
			if err := r.packHelper(tw, executable); err != nil || more == nil {
				return err
			}
			return more(tw)
		}
	}
	if run.files != nil {
		// It is removed with the container.
		run.mounts = append(run.mounts, mount.Mount{
			Type: mount.TypeVolume, Target: helperFiles,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: r.engine.Labels(engine.RoleScratch, "", "")},
		})
	}
	network := engine.NoNetwork
	if run.hostNetwork {
		network = "host"
	}
	users := container.UsernsMode("host")
	if run.mappedUsers {
		users = ""
	}
	made, err := r.engine.API.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: r.engine.Names.Helper + "-" + engine.RandomHex(4),
		Config: &container.Config{
			Image:           ref,
			Entrypoint:      entrypoint,
			Cmd:             run.args,
			User:            "0:0",
			Labels:          r.engine.Labels(engine.RoleHelper, "", ""),
			NetworkDisabled: !run.hostNetwork,
		},
		HostConfig: &container.HostConfig{
			NetworkMode:    network,
			UsernsMode:     users,
			CapDrop:        []string{"ALL"},
			CapAdd:         run.caps,
			ReadonlyRootfs: true,
			SecurityOpt:    []string{seccomp.Option(), "no-new-privileges:true"},
			Mounts:         run.mounts,
			LogConfig:      container.LogConfig{Type: "json-file"},
		},
	})
	if errdefs.IsNotFound(err) {
		return engine.ErrConcurrent("the helper's image was removed concurrently")
	}
	if err != nil {
		return engine.WrapError(ctx, "create helper", err)
	}
	defer func() {
		// Also after a cancellation, so that no container is left behind.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err := r.engine.Discard(ctx, made.ID); err != nil {
			r.engine.Log.Warn("helper container not removed", "container", made.ID, "err", err)
		}
	}()
	if run.files != nil {
		if err := r.copyTo(ctx, made.ID, helperFiles, run.files); err != nil {
			return err
		}
	}
	wait, err := r.startHelper(ctx, made.ID)
	if err != nil {
		return err
	}
	if run.line != nil {
		listened := r.listen(ctx, made.ID, run.line)
		defer func() { <-listened }()
	}
	select {
	case err := <-wait.Error:
		return engine.WrapError(ctx, "wait for helper", err)
	case end := <-wait.Result:
		if end.StatusCode == 0 {
			return nil
		}
		return helperError(fmt.Errorf("helper %s ended with code %d: %s", run.args[0], end.StatusCode, r.helperOutput(ctx, made.ID)))
	}
}

// startHelper starts a created helper, and returns what yields its end.
func (r *Runtime) startHelper(ctx context.Context, id string) (client.ContainerWaitResult, error) {
	wait := r.engine.API.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	_, err := r.engine.API.ContainerStart(ctx, id, client.ContainerStartOptions{})
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

// helperError returns the error of a helper, which is runtime.ErrNoSpace if the disk that it
// works on is full.
func helperError(err error) error {
	if engine.NoSpace(err) {
		return fmt.Errorf("%w: %w", runtime.ErrNoSpace, err)
	}
	return err
}

// copyTo copies the files that fill writes to a folder of a container.
func (r *Runtime) copyTo(ctx context.Context, id, folder string, fill func(*tar.Writer) error) error {
	pr, done := tarPipe(fill)
	_, err := r.engine.API.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: folder, Content: pr})
	pr.Close()
	if own := <-done; own != nil {
		return own // Docker repeats it as an error of its own
	}
	return engine.WrapError(ctx, "copy files to the helper", err)
}

// packHelper writes the helper's executable under a name.
func (r *Runtime) packHelper(tw *tar.Writer, name string) error {
	f, err := os.Open(r.cfg.HelperBinary)
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
func (r *Runtime) listen(ctx context.Context, id string, line func([]byte)) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		given := 0
		if err := r.readReport(ctx, id, true, &given, line, &outputTail{log: func(string) {}}); err != nil {
			r.engine.Log.Debug("read helper progress failed", "container", id, "err", err)
		}
	}()
	return done
}

func (r *Runtime) helperOutput(ctx context.Context, id string) string {
	stream, err := r.engine.API.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "20"})
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

// ensureHelperImage returns the image of the current executable and builds it if it
// is missing.
func (r *Runtime) ensureHelperImage(ctx context.Context) (string, error) {
	r.helper.mu.Lock()
	defer r.helper.mu.Unlock()
	f, err := os.Open(r.cfg.HelperBinary)
	if err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	if r.helper.ref == "" || r.helper.size != info.Size() || !r.helper.time.Equal(info.ModTime()) {
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return "", fmt.Errorf("read the helper's executable: %w", err)
		}
		r.helper.sum = hex.EncodeToString(sum.Sum(nil))
		r.helper.ref = r.engine.Names.Helper + ":" + r.helper.sum[:16]
		r.helper.size, r.helper.time = info.Size(), info.ModTime()
	}
	_, err = r.engine.API.ImageInspect(ctx, r.helper.ref)
	if err == nil {
		return r.helper.ref, nil
	}
	if !errdefs.IsNotFound(err) {
		return "", engine.WrapError(ctx, "inspect helper image", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", fmt.Errorf("read the helper's executable: %w", err)
	}
	if err := r.importHelper(ctx, r.helper.ref, f, info.Size()); err != nil {
		return "", err
	}
	r.removeOldHelpers(ctx, r.helper.ref)
	return r.helper.ref, nil
}

// helperRef returns the image of the executable, if it is known.
func (r *Runtime) helperRef() string {
	r.helper.mu.Lock()
	defer r.helper.mu.Unlock()
	return r.helper.ref
}

// helperDigest returns the digest of the executable of the last ensureHelperImage.
func (r *Runtime) helperDigest() string {
	r.helper.mu.Lock()
	defer r.helper.mu.Unlock()
	return r.helper.sum
}

func (r *Runtime) importHelper(ctx context.Context, ref string, f io.Reader, size int64) error {
	entrypoint := `ENTRYPOINT ["/codehub","` + HelperCommand + `"]`
	return r.importImage(ctx, ref, engine.RoleHelper, []string{entrypoint}, func(tw *tar.Writer) error {
		if err := tw.WriteHeader(&tar.Header{Name: "codehub", Mode: 0o755, Size: size}); err != nil {
			return err
		}
		_, err := io.CopyN(tw, f, size)
		return err
	})
}

// importImage creates an image from the files that fill writes.
func (r *Runtime) importImage(ctx context.Context, ref, role string, changes []string, fill func(*tar.Writer) error) error {
	for k, v := range r.engine.Labels(role, "", "") {
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
	res, err := r.engine.API.ImageImport(ctx, client.ImageImportSource{Source: pr, SourceName: "-"}, ref,
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

// removeOldHelpers removes the images of earlier executables. Docker keeps those
// that a storage job uses; the next sweep tries again.
func (r *Runtime) removeOldHelpers(ctx context.Context, current string) {
	if current == "" {
		return // not known yet which images are old
	}
	list, err := r.engine.API.ImageList(ctx, client.ImageListOptions{Filters: r.engine.Filter(engine.RoleHelper)})
	if err != nil {
		r.engine.Log.Debug("list old helper images failed", "err", err)
		return
	}
	for _, img := range list.Items {
		for _, tag := range img.RepoTags {
			if tag == current {
				continue
			}
			if _, err := r.engine.API.ImageRemove(ctx, tag, client.ImageRemoveOptions{PruneChildren: true}); err != nil {
				r.engine.Log.Debug("old helper image kept", "image", tag, "err", err)
			}
		}
	}
}
