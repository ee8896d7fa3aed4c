package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

const (
	maxLine       = 1 << 20 // bytes; longer lines of a report are dropped
	maxTailLines  = 20      // last lines of a job's standard error
	ReopenAfter   = 200 * time.Millisecond
	drainTimeout  = 5 * time.Second // how long a log may continue after its container's end
	maxTailLine   = 4 << 10
	followTimeout = time.Minute // generous, for a busy Docker: no page waits for this
)

// Follow follows a started container with this role to its end, and returns its exit code and the
// last lines of its standard error. Each line of its output is delivered once.
func (h *Helper) Follow(ctx context.Context, role, jobID string, line func([]byte)) (code int, words string, err error) {
	tail := &outputTail{log: func(s string) { h.Log.Debug("storage job output", "job", jobID, "line", s) }}
	given := 0
	for try := 0; ; try++ {
		c, err := h.Inspect(ctx, role, jobID)
		if err != nil {
			return 0, "", err
		}
		ended := engine.StateOf(c.State.Status) == runtime.ContainerExited
		tail.lines = nil
		err = h.readReport(ctx, jobID, !ended, &given, line, tail)
		switch {
		case ctx.Err() != nil:
			return 0, "", engine.WrapError(ctx, "follow storage job", ctx.Err())
		case errdefs.IsNotFound(err), errdefs.IsConflict(err): // gone, or being removed
			return 0, "", fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
		case err == nil && ended:
			words = strings.Join(tail.lines, "\n")
			if c.State.ExitCode != 0 {
				h.Log.Warn("storage job failed", "job", jobID, "container", c.Name, "code", c.State.ExitCode,
					"out_of_memory", c.State.OOMKilled, "words", words)
			}
			return c.State.ExitCode, words, nil
		case err != nil && try >= 50:
			return 0, "", engine.WrapError(ctx, "follow storage job", err)
		}
		if err != nil {
			h.Log.Debug("storage job log interrupted; reopening", "job", jobID, "err", err)
		}
		if try > 0 || err == nil {
			h.pause(ctx, jobID)
		}
	}
}

// pause waits for a moment or until the job ends. Usually the log ends slightly
// before Docker reports the exit.
func (h *Helper) pause(ctx context.Context, jobID string) {
	ctx, cancel := context.WithTimeout(ctx, ReopenAfter)
	defer cancel()
	if h.awaitExit(ctx, jobID) != nil {
		<-ctx.Done()
	}
}

// Inspect inspects a started job by its ID.
func (h *Helper) Inspect(ctx context.Context, role, jobID string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	c, err := h.API.ContainerInspect(ctx, jobID, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return container.InspectResponse{}, fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
	case err != nil:
		return container.InspectResponse{}, engine.WrapError(ctx, "inspect storage job", err)
	case c.Container.ID != jobID || !h.Owns(c.Container.Config.Labels, role):
		return container.InspectResponse{}, fmt.Errorf("container %s is no storage job: %w", jobID, runtime.ErrNotFound)
	case engine.StateOf(c.Container.State.Status) == runtime.ContainerCreated:
		return container.InspectResponse{}, fmt.Errorf("storage job %s was never started: %w", jobID, runtime.ErrNotFound)
	}
	return c.Container, nil
}

// readReport reads the log from the beginning and delivers the lines after the
// first *given.
func (h *Helper) readReport(ctx context.Context, jobID string, follow bool, given *int, line func([]byte), words *outputTail) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.API.ContainerLogs(ctx, jobID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: follow})
	if err != nil {
		return err
	}
	defer stream.Close()
	if follow {
		// Do not wait for a log that continues after its container's end.
		done := make(chan struct{})
		defer func() {
			cancel()
			<-done
		}()
		go func() {
			defer close(done)
			if h.awaitExit(ctx, jobID) != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(drainTimeout):
				cancel()
			}
		}()
	}
	seen := 0
	out := &lines{max: maxLine, line: func(l []byte) {
		seen++
		if seen > *given {
			*given = seen
			line(l)
		}
	}, tooLong: func() {
		seen++
		if seen > *given {
			*given = seen
			h.Log.Warn("storage job report line too long; dropped", "job", jobID)
		}
	}}
	errs := &lines{max: maxTailLine, line: words.add, tooLong: func() { words.add([]byte("(a long line)")) }}
	_, err = stdcopy.StdCopy(out, errs, stream)
	return err
}

func (h *Helper) awaitExit(ctx context.Context, id string) error {
	wait := h.API.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case err := <-wait.Error:
		if err == nil {
			err = errors.New("the wait ended")
		}
		return err
	case <-wait.Result:
		return nil
	}
}

// lines splits its input into lines.
type lines struct {
	max     int
	line    func([]byte)
	tooLong func()

	part []byte
	skip bool // the current line is too long
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		end := i >= 0
		head := p
		if end {
			head, p = p[:i], p[i+1:]
		}
		if !l.skip && len(l.part)+len(head) > l.max {
			l.skip, l.part = true, nil
		}
		if !l.skip {
			l.part = append(l.part, head...)
		}
		if !end {
			return n, nil
		}
		if l.skip {
			l.tooLong()
		} else {
			l.line(l.part)
		}
		l.skip, l.part = false, l.part[:0]
	}
}

// outputTail keeps the last lines of a job's standard error.
type outputTail struct {
	lines []string
	log   func(string)
}

func (w *outputTail) add(l []byte) {
	s := strings.ToValidUTF8(string(l), "\uFFFD")
	w.log(s)
	if len(w.lines) == maxTailLines {
		w.lines = append(w.lines[:0], w.lines[1:]...)
	}
	w.lines = append(w.lines, s)
}

// JobOf returns the storage job that a container with these labels is.
func JobOf(id string, labels map[string]string, state container.ContainerState, created time.Time) runtime.Job {
	return runtime.Job{
		ID:          id,
		Workspace:   workspace.ID(labels[engine.LabelWorkspace]),
		Claim:       labels[engine.LabelClaim],
		Kind:        runtime.JobKind(labels[engine.LabelKind]),
		VolumeClaim: labels[engine.LabelVolume],
		Key:         labels[engine.LabelKey],
		BucketDir:   labels[engine.LabelBucket],
		Running:     engine.StateOf(state) == runtime.ContainerRunning,
		Created:     created,
	}
}

// Job returns the storage job that an inspected container is.
func Job(c container.InspectResponse) runtime.Job {
	created, _ := time.Parse(time.RFC3339Nano, c.Created)
	return JobOf(c.ID, c.Config.Labels, c.State.Status, created)
}
