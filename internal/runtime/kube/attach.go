package kube

import (
	"bytes"
	"context"
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
	if s := statusOf(p, containerHelper); ended(p) || s != nil && (s.State.Running != nil || s.State.Terminated != nil) {
		r.podView.wrote(p)
		return jobOf(p), nil
	}
	p, err := r.awaitStep(ctx, p, jobStep(spec.Kind), progress, hasStarted(containerHelper))
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
