package docker

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
)

const (
	maxLine       = 1 << 20 // bytes of a line of a job's report; a longer one is left out
	maxLastWords  = 20      // lines that a job wrote to its standard error last
	reopenAfter   = 200 * time.Millisecond
	drainAtMost   = 5 * time.Second // that a log goes on after its container's end
	maxWordLength = 4 << 10
	followTimeout = time.Minute // nobody waits for a page here, and an engine at work is slow
)

// FollowJob implements runtime.Runtime. Each line is given once, without its
// end and good only until line returns; an end of the log that is none, which
// the engine tells of now and then, is not noticed by the caller. A line whose
// end the job did not live to print is not given.
func (r *Runtime) FollowJob(ctx context.Context, jobID string, line func([]byte)) (int, error) {
	return r.follow(ctx, roleJob, jobID, line)
}

// follow follows a container with this role, which was started, to its end.
func (r *Runtime) follow(ctx context.Context, role, jobID string, line func([]byte)) (int, error) {
	words := &lastWords{log: func(s string) { r.log.Debug("storage job says", "job", jobID, "words", s) }}
	given := 0
	for try := 0; ; try++ {
		c, err := r.inspectJob(ctx, role, jobID)
		if err != nil {
			return 0, err
		}
		ended := stateOf(c.State.Status) == runtime.ContainerExited
		words.lines = nil
		err = r.readReport(ctx, jobID, !ended, &given, line, words)
		switch {
		case ctx.Err() != nil:
			return 0, failed(ctx, "follow storage job", ctx.Err())
		case errdefs.IsNotFound(err):
			return 0, fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
		case err == nil && ended:
			if c.State.ExitCode != 0 {
				r.log.Warn("a storage job failed", "job", jobID, "container", c.Name, "code", c.State.ExitCode,
					"out_of_memory", c.State.OOMKilled, "words", strings.Join(words.lines, "\n"))
			}
			return c.State.ExitCode, nil
		case err != nil && try >= 50:
			return 0, failed(ctx, "follow storage job", err)
		}
		if err != nil {
			r.log.Debug("a storage job's log was cut off; it is opened again", "job", jobID, "err", err)
		}
		if try > 0 || err == nil {
			r.pause(ctx, jobID)
		}
	}
}

// pause waits a moment, or until the job has ended: mostly its log has just
// told so, a little before the engine does.
func (r *Runtime) pause(ctx context.Context, jobID string) {
	ctx, cancel := context.WithTimeout(ctx, reopenAfter)
	defer cancel()
	if r.awaitExit(ctx, jobID) != nil {
		<-ctx.Done()
	}
}

// inspectJob looks at a job that was started, by its id.
func (r *Runtime) inspectJob(ctx context.Context, role, jobID string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	c, err := r.api.ContainerInspect(ctx, jobID, client.ContainerInspectOptions{})
	switch {
	case errdefs.IsNotFound(err):
		return container.InspectResponse{}, fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
	case err != nil:
		return container.InspectResponse{}, failed(ctx, "inspect storage job", err)
	case c.Container.ID != jobID || !r.owns(c.Container.Config.Labels, role):
		return container.InspectResponse{}, fmt.Errorf("container %s is no storage job: %w", jobID, runtime.ErrNotFound)
	case stateOf(c.Container.State.Status) == runtime.ContainerCreated:
		return container.InspectResponse{}, fmt.Errorf("storage job %s was never started: %w", jobID, runtime.ErrNotFound)
	}
	return c.Container, nil
}

// readReport reads the log from its beginning and gives the lines after the
// first *given of them.
func (r *Runtime) readReport(ctx context.Context, jobID string, follow bool, given *int, line func([]byte), words *lastWords) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.api.ContainerLogs(ctx, jobID, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: follow})
	if err != nil {
		return err
	}
	defer stream.Close()
	if follow {
		// A log that goes on for ever after its container's end is not waited for.
		done := make(chan struct{})
		defer func() {
			cancel()
			<-done
		}()
		go func() {
			defer close(done)
			if r.awaitExit(ctx, jobID) != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(drainAtMost):
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
			r.log.Warn("a line of a storage job's report is too long and is left out", "job", jobID)
		}
	}}
	errs := &lines{max: maxWordLength, line: words.add, tooLong: func() { words.add([]byte("(a long line)")) }}
	_, err = stdcopy.StdCopy(out, errs, stream)
	return err
}

func (r *Runtime) awaitExit(ctx context.Context, id string) error {
	wait := r.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
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

// lines cuts what is written to it into lines.
type lines struct {
	max     int
	line    func([]byte)
	tooLong func()

	part []byte
	skip bool // the present line is too long
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

// lastWords keeps the last lines of a job's standard error.
type lastWords struct {
	lines []string
	log   func(string)
}

func (w *lastWords) add(l []byte) {
	s := strings.ToValidUTF8(string(l), "\uFFFD")
	w.log(s)
	if len(w.lines) == maxLastWords {
		w.lines = append(w.lines[:0], w.lines[1:]...)
	}
	w.lines = append(w.lines, s)
}
