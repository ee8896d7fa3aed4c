package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"

	"codehub/internal/runtime"
)

// instruct waits until an admitted job runs and sends its input, unless it runs already: then
// the call that started it has sent the input, or has died, and the job ends with an error.
// A job that cannot get its input is removed.
func (r *Runtime) instruct(ctx context.Context, p *corev1.Pod, spec runtime.JobSpec, progress func(runtime.Progress)) (runtime.Job, error) {
	if begun(p, containerHelper) {
		r.podView.wrote(p)
		return jobOf(p), nil
	}
	p, err := r.awaitHelper(ctx, p, jobStep(spec.Kind), progress)
	if errors.Is(err, errGone) {
		return runtime.Job{}, &runtime.BusyError{Reason: "the Pod of the storage job was removed before it started"}
	}
	if err != nil {
		return runtime.Job{}, err
	}
	if !jobOf(p).Running {
		return jobOf(p), nil
	}
	if err := runtime.Fenced(ctx); err != nil {
		return runtime.Job{}, fmt.Errorf("send instructions to storage job: %w: %w", errAway, err)
	}
	if err := r.send(ctx, p, spec.Input); err != nil {
		err = wrapError(ctx, "send instructions to storage job", err)
		if gone := r.discard(ctx, p); gone != nil {
			r.log.Warn("storage job without instructions not removed", "pod", p.Name, "err", gone)
		}
		return runtime.Job{}, err
	}
	return jobOf(p), nil
}

// maxRoomWait is how long a call waits for a node. Then it is repeated, so that a job gets new
// addresses of the bucket before the earlier ones expire, and other archivings get their turn.
const maxRoomWait = 10 * time.Minute

// awaitHelper waits until the helper of a Pod has started. While no node is found for the Pod it
// keeps it, and reports why: another Pod would wait at the end of the queue. A job is also kept
// while its node waits for the volume, since a job that starts while no call waits for it gets no
// instructions. After maxRoomWait it is runtime.ErrBusy.
func (r *Runtime) awaitHelper(ctx context.Context, p *corev1.Pod, step string, progress func(runtime.Progress)) (*corev1.Pod, error) {
	waited := false
	for began := time.Now(); ; {
		now, err := r.awaitStep(ctx, p, step, progress, hasStarted(containerHelper))
		var busy *runtime.BusyError
		if !errors.As(err, &busy) || busy.Step != runtime.StepWaitingRoom && busy.Step != runtime.StepWaitingVolume ||
			now == nil || now.Spec.NodeName != "" && !r.owns(now.Labels, roleJob) || time.Since(began) > maxRoomWait {
			if err == nil && waited {
				report(progress, step)
			}
			return now, err
		}
		waited = true
		if progress != nil {
			progress(runtime.Progress{Step: busy.Step, Detail: busy.Reason, Uncounted: true})
		}
		next, err := r.nextVersion(ctx, now, unschedulableFor, hasStarted(containerHelper))
		if err != nil {
			return now, err
		}
		if now.Spec.NodeName == "" && (next.Spec.NodeName != "" || refusal(next) == nil) {
			waited = false
			report(progress, step)
		}
		p = next
	}
}

// attachedFor is how long the connection to a job stays open after its whole input was
// written, so that every server on the way has passed it on.
const attachedFor = 30 * time.Second

// send writes the input of a job. The connection stays open for a while after it returns.
func (r *Runtime) send(ctx context.Context, p *corev1.Pod, input []byte) error {
	options := &corev1.PodAttachOptions{Container: containerHelper, Stdin: true, Stdout: true}
	url := r.api.rest.Get().Resource("pods").Namespace(p.Namespace).Name(p.Name).SubResource("attach").VersionedParams(options, r.api.params).URL()
	attach, err := remotecommand.NewWebSocketExecutor(r.rest, "GET", url.String())
	if err != nil {
		return err
	}
	in := &sent{Reader: bytes.NewReader(input), all: make(chan struct{})}
	streaming, stop := context.WithCancel(context.WithoutCancel(ctx))
	over := make(chan error, 1)
	go func() {
		defer stop()
		over <- attach.StreamWithContext(streaming, remotecommand.StreamOptions{Stdin: in, Stdout: io.Discard})
	}()
	select {
	case <-in.all:
		time.AfterFunc(attachedFor, stop)
		return nil
	case err := <-over:
		select {
		case <-in.all: // the job has ended already
			return nil
		default:
		}
		if err == nil {
			err = io.ErrUnexpectedEOF
		}
		return err
	case <-ctx.Done():
		stop()
		return ctx.Err()
	}
}

// sent is a reader whose end is noticed: all is closed when what it had was written.
type sent struct {
	io.Reader
	all  chan struct{}
	once sync.Once
}

// Read implements io.Reader.
func (s *sent) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if err != nil {
		s.once.Do(func() { close(s.all) })
	}
	return n, err
}
