package kube

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"codehub/internal/runtime"
)

const (
	maxLine = 1 << 20 // bytes; longer lines are dropped
	// maxInterruptions limits how often a log is opened again.
	maxInterruptions = 50
	// killed is the exit code of a Pod that ended without one, such as an evicted one.
	killed = 137
)

// follow calls line for every line that the helper in a Pod has printed since it began, once
// each, until it ends. It returns the Pod as it was then, and the exit code. If the log ends
// early, it is opened again; after the helper's end it is read once more, because a log that
// is followed may end before its last lines. It reports while the Pod's node pulls an image, and
// step afterwards.
func (r *Runtime) follow(ctx context.Context, p *corev1.Pod, step string, progress func(runtime.Progress), line func([]byte)) (*corev1.Pod, int, error) {
	given, interruptions := 0, 0
	for {
		now, err := r.awaitStep(ctx, p, step, progress, hasStarted(containerHelper))
		p = now
		if err != nil {
			return p, 0, err
		}
		s := statusOf(p, containerHelper)
		if s == nil || s.State.Running == nil && s.State.Terminated == nil { // it never started
			return p, killed, fmt.Errorf("pod %s did not start: %s", p.Name, words(p))
		}
		over := ended(p)
		err = r.readLines(ctx, p, !over, &given, line)
		switch {
		case ctx.Err() != nil:
			return p, 0, wrapError(ctx, "follow Pod "+p.Name, ctx.Err())
		case err == nil && over:
			return p, exitCode(s), nil
		case err != nil:
			if interruptions++; interruptions > maxInterruptions {
				return p, 0, wrapError(ctx, "read the log of Pod "+p.Name, err)
			}
			r.log.Debug("the log of a Pod was interrupted", "pod", p.Name, "err", err)
		}
		if err := pause(ctx, "follow Pod "+p.Name); err != nil {
			return p, 0, err
		}
		now, err = r.reread(ctx, p)
		if err != nil {
			return p, 0, err
		}
		p = now
	}
}

func exitCode(s *corev1.ContainerStatus) int {
	if s.State.Terminated == nil {
		return killed
	}
	return int(s.State.Terminated.ExitCode)
}

// readLines calls line for the lines of the log after the first *given ones, and counts them
// in it.
func (r *Runtime) readLines(ctx context.Context, p *corev1.Pod, follow bool, given *int, line func([]byte)) error {
	stream, err := r.readLog(ctx, p.Name, &corev1.PodLogOptions{Container: containerHelper, Follow: follow})
	if err != nil {
		return err
	}
	defer stream.Close()
	lines := bufio.NewReaderSize(stream, 64<<10)
	for n := 0; ; n++ {
		text, complete, err := nextLine(lines)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n < *given {
			continue
		}
		*given = n + 1
		if complete {
			line(text)
		}
	}
}

// nextLine returns the next line without its end. complete is false for a line that is too
// long, which is skipped. The end of the log within a line is io.EOF.
func nextLine(r *bufio.Reader) (text []byte, complete bool, err error) {
	for tooLong := false; ; {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			text = append(text, part...)
		}
		tooLong = tooLong || len(text) > maxLine
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, false, err
		case tooLong:
			return nil, false, nil
		default:
			return text[:len(text)-1], true, nil
		}
	}
}

// FollowJob implements runtime.Runtime. What a job prints to its standard error is part of
// its lines, since a Pod has one log. If its node is lost, the job ends with killed.
func (r *Runtime) FollowJob(ctx context.Context, jobID string, line func([]byte)) (int, error) {
	p, err := r.identified(ctx, jobID, roleJob)
	var foreign *foreignError
	if err != nil && !errors.As(err, &foreign) {
		return 0, err
	}
	if p == nil || gated(p) {
		return 0, fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
	}
	_, exit, err := r.follow(ctx, p, "", nil, line)
	if errors.Is(err, errGone) || apierrors.IsNotFound(err) {
		err = fmt.Errorf("storage job %s: %w", jobID, runtime.ErrNotFound)
	}
	return exit, err
}

// probeTimeout bounds a request to a workspace's IDE.
const probeTimeout = 5 * time.Second
