// Package attach lets callers into running workspaces by another way than the
// IDE's: terminals, commands, SSH and forwarded ports. It authorizes them, wakes the
// workspace, gives them its agent, and ends their access when it has to end.
package attach

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"codehub/internal/bus/activity"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Errors of Attach, and causes of the end of an Attachment's context.
var (
	// ErrTooMany: the user has as many attachments as allowed.
	ErrTooMany = errors.New("too many open connections to workspaces")
	// ErrNoAgent: the container was started by a version without an agent, or with one
	// that does not speak this server's version of the protocol. The workspace has to be
	// restarted.
	ErrNoAgent = errors.New("the workspace was started by another version of codehub; restart it")
	// ErrGuest comes with ErrNoAgent or agent.ErrUnreachable for a guest of the workspace, which
	// only its owner can restart.
	ErrGuest = errors.New("the workspace is another user's")
	// ErrStopped: the container has stopped or was replaced.
	ErrStopped = errors.New("the workspace has stopped")
	// ErrAccessEnded: the workspace is not the caller's any more, or was deleted.
	ErrAccessEnded = errors.New("the access to the workspace has ended")
	// ErrClosed: the Attachment or the Attacher was closed.
	ErrClosed = errors.New("closed")
)

// NotOpen reports a workspace that does not run and that a connection does not
// start: a user has to decide.
type NotOpen struct {
	Workspace workspace.Workspace
	// Opening is OpenRestores, OpenCreates, OpenFails or OpenDeleted; OpenStarts or OpenQueues if
	// the workspace was stopped, or its start cancelled, during the wait; of AttachRunning any but
	// OpenNow.
	Opening lifecycle.Opening
}

// StoppedAgain reports whether the workspace was stopped, or its start cancelled, while Attach
// waited for it.
func (e *NotOpen) StoppedAgain() bool {
	return e.Opening == lifecycle.OpenStarts || e.Opening == lifecycle.OpenQueues
}

func (e *NotOpen) Error() string {
	switch e.Opening {
	case lifecycle.OpenRestores:
		return "the workspace is archived"
	case lifecycle.OpenCreates:
		return "the workspace was never started"
	case lifecycle.OpenDeleted:
		return "the workspace is deleted"
	case lifecycle.OpenFails:
		return "the workspace has failed"
	}
	return "the workspace is not running"
}

// Store reads workspaces and wakes them.
type Store interface {
	// EnterableWorkspace returns the caller's own workspace, or one that the caller may use as
	// a guest; CodeForbidden otherwise, also for administrators.
	EnterableWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
	// Wake starts the workspace, or queues the start while it is being stopped or
	// archived. CodeLimitExceeded has the details that docs/api.md describes.
	Wake(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error)
}

// Sessions ends attachments when the session ends.
type Sessions interface {
	// Watch returns a context that ends with ctx, or soon after the session, token or
	// key (Caller.Session) has ended. The caller must call stop.
	Watch(ctx context.Context, session string) (watched context.Context, stop context.CancelFunc)
}

// Config holds what an Attacher needs. Fields are required unless marked optional.
type Config struct {
	Store    Store
	Runtime  runtime.Upstreams
	Sessions Sessions
	// Activity records the use of workspaces; optional.
	Activity *activity.Recorder
	// PerUser limits the attachments of each user; 0: no limit.
	PerUser int
	// CheckInterval is how often a workspace is read again without an event;
	// optional, 30 s.
	CheckInterval time.Duration
	// Patience is how long a running workspace's container and agent may take to
	// respond; optional, 15 s.
	Patience time.Duration
}

// Attacher lets callers into workspaces. It is safe for concurrent use.
type Attacher struct {
	cfg    Config
	checks singleflight.Group // by workspace, user and events
	loads  singleflight.Group // by workspace
	events atomic.Uint64      // counts Changed and Gap

	mu       sync.Mutex
	closed   bool
	watchers map[workspace.ID]map[*watcher]struct{}
	users    map[string]int
	open     sync.WaitGroup
}

// watcher waits for events of one workspace. changed receives a value when the workspace may
// have changed.
type watcher struct{ changed chan struct{} }

// New returns an Attacher. Its Changed and Gap must observe the events of
// workspaces.
func New(cfg Config) *Attacher {
	if cfg.CheckInterval == 0 {
		cfg.CheckInterval = 30 * time.Second
	}
	if cfg.Patience == 0 {
		cfg.Patience = 15 * time.Second
	}
	return &Attacher{cfg: cfg, watchers: map[workspace.ID]map[*watcher]struct{}{}, users: map[string]int{}}
}

// Changed reports that a workspace may have changed.
func (a *Attacher) Changed(id workspace.ID) {
	a.events.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.watchers[id] {
		w.wake()
	}
}

// Gap reports that events may have been lost.
func (a *Attacher) Gap() {
	a.events.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, of := range a.watchers {
		for w := range of {
			w.wake()
		}
	}
}

func (w *watcher) wake() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (a *Attacher) watch(id workspace.ID) *watcher {
	w := &watcher{changed: make(chan struct{}, 1)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.watchers[id] == nil {
		a.watchers[id] = map[*watcher]struct{}{}
	}
	a.watchers[id][w] = struct{}{}
	return w
}

func (a *Attacher) unwatch(id workspace.ID, w *watcher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.watchers[id], w)
	if len(a.watchers[id]) == 0 {
		delete(a.watchers, id)
	}
}

// enter counts an attachment of the user.
func (a *Attacher) enter(user string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed:
		return ErrClosed
	case a.cfg.PerUser > 0 && a.users[user] >= a.cfg.PerUser:
		return ErrTooMany
	}
	a.users[user]++
	a.open.Add(1)
	return nil
}

func (a *Attacher) leave(user string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.users[user]--; a.users[user] == 0 {
		delete(a.users, user)
	}
	a.open.Done()
}

// Close ends all attachments with ErrClosed, lets no new ones begin, and returns
// once their callers have closed them, or ctx ends.
func (a *Attacher) Close(ctx context.Context) {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.Gap()
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.open.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

func (a *Attacher) isClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.closed
}

// Attach returns once the workspace runs and its agent answers. It wakes the
// workspace if opening it does (lifecycle.OpeningOf), but only once, and not after it has
// seen that a start is requested: if the workspace is stopped during the wait, the wait ends. It
// calls progress with each state that it waits in; nil: not needed. The attachment counts from the beginning
// of the wait. Errors: *workspace.Error, of which CodeLimitExceeded has the details
// that docs/api.md describes; *NotOpen; ErrTooMany; ErrNoAgent, for a guest also ErrGuest;
// ErrClosed; the cause of the session's end. ctx limits the attachment as well.
func (a *Attacher) Attach(ctx context.Context, caller workspace.Caller, id workspace.ID, progress func(workspace.Workspace)) (*Attachment, error) {
	return a.attach(ctx, caller, id, true, progress)
}

// AttachRunning attaches to a workspace that is running. It does not wake a workspace: if the
// workspace is not running, the error is *NotOpen. The rest is as in Attach.
func (a *Attacher) AttachRunning(ctx context.Context, caller workspace.Caller, id workspace.ID) (*Attachment, error) {
	return a.attach(ctx, caller, id, false, nil)
}

func (a *Attacher) attach(ctx context.Context, caller workspace.Caller, id workspace.ID, wake bool, progress func(workspace.Workspace)) (*Attachment, error) {
	if err := caller.Permits(workspace.ScopeWorkspaces, id); err != nil {
		return nil, err
	}
	if err := a.enter(caller.UserID); err != nil {
		return nil, err
	}
	watched, stop := ctx, context.CancelFunc(func() {})
	if caller.Session != "" {
		watched, stop = a.cfg.Sessions.Watch(ctx, caller.Session)
	}
	own, cancel := context.WithCancelCause(watched)
	x := &Attachment{attacher: a, caller: caller, watcher: a.watch(id), ctx: own, cancel: cancel, stop: stop}
	if err := x.await(id, wake, progress); err != nil {
		if cause := context.Cause(own); cause != nil {
			err = cause
		}
		x.release(id)
		return nil, err
	}
	x.mark = a.cfg.Activity.Mark(id)
	x.ended.Add(1)
	go func() {
		defer x.ended.Done()
		x.cancel(x.follow())
	}()
	return x, nil
}

// Attachment is a caller's access to a running workspace. The caller must close it.
type Attachment struct {
	Workspace workspace.Workspace // as of the attachment's beginning
	Agent     *agent.Client

	attacher  *Attacher
	caller    workspace.Caller
	container string // the ID of the container
	mark      *activity.Mark
	watcher   *watcher
	ctx       context.Context
	cancel    context.CancelCauseFunc
	stop      context.CancelFunc
	ended     sync.WaitGroup
	once      sync.Once
}

// Context ends with Attach's context, when the container stops, when the access
// ends, or with Close. context.Cause tells why.
func (x *Attachment) Context() context.Context { return x.ctx }

// Used records that the workspace is used now. It must not be called after Close.
func (x *Attachment) Used(kind activity.Kind) { x.mark.Touch(kind) }

// Close ends the attachment. Connections to the agent are the caller's to close.
func (x *Attachment) Close() {
	x.once.Do(func() {
		x.cancel(ErrClosed)
		x.ended.Wait()
		x.mark.Release()
		x.release(x.Workspace.ID)
	})
}

func (x *Attachment) release(id workspace.ID) {
	x.attacher.unwatch(id, x.watcher)
	x.cancel(ErrClosed)
	x.stop()
	x.attacher.leave(x.caller.UserID)
}

// pause waits for a change of the workspace, or for the interval. It returns the
// cause of the end of the context.
func (x *Attachment) pause(interval time.Duration) error {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	select {
	case <-x.watcher.changed:
	case <-timer.C:
	case <-x.ctx.Done():
		return context.Cause(x.ctx)
	}
	if x.attacher.isClosed() {
		return ErrClosed
	}
	return nil
}

// retryInterval is how soon a running workspace is tried again whose container or
// agent did not respond.
const retryInterval = 200 * time.Millisecond

// await waits until the workspace runs and its agent answers.
func (x *Attachment) await(id workspace.ID, wake bool, progress func(workspace.Workspace)) error {
	store := x.attacher.cfg.Store
	var since time.Time // of the first of the attempts to connect
	requested := false  // by this attachment, or by another request that it has seen
	for {
		ws, err := store.EnterableWorkspace(x.ctx, x.caller, id)
		if err != nil {
			return err
		}
		opening := lifecycle.OpeningOf(ws)
		if !wake && opening != lifecycle.OpenNow {
			return &NotOpen{Workspace: ws, Opening: opening}
		}
		switch {
		case lifecycle.StartRequested(ws):
			requested = true
		case opening != lifecycle.OpenStarts && opening != lifecycle.OpenQueues:
		case requested: // the owner has stopped it or cancelled its start, which a wait must not undo
			return &NotOpen{Workspace: ws, Opening: opening}
		default:
			if ws, err = store.Wake(x.ctx, x.caller, id); err != nil {
				return err
			}
			requested, opening = true, lifecycle.OpeningOf(ws)
		}
		interval := x.attacher.cfg.CheckInterval
		if opening != lifecycle.OpenNow {
			since = time.Time{}
		}
		switch opening {
		case lifecycle.OpenNow:
			if since.IsZero() {
				since = time.Now()
			}
			end := since.Add(x.attacher.cfg.Patience)
			err := x.connect(ws, end)
			if err == nil {
				return nil
			}
			if errors.Is(err, ErrNoAgent) || time.Until(end) <= retryInterval {
				if !x.caller.Uses(ws.OwnerID, ws.ID) {
					err = fmt.Errorf("%w: %w", ErrGuest, err)
				}
				return err
			}
			interval = retryInterval
		case lifecycle.OpenRestores, lifecycle.OpenCreates, lifecycle.OpenFails, lifecycle.OpenDeleted:
			return &NotOpen{Workspace: ws, Opening: opening}
		}
		if progress != nil {
			progress(ws)
		}
		if err := x.pause(interval); err != nil {
			return err
		}
	}
}

// connect asks the agent of the running workspace for its version, until end.
func (x *Attachment) connect(ws workspace.Workspace, end time.Time) error {
	ctx, cancel := context.WithDeadline(x.ctx, end)
	defer cancel()
	up, err := x.attacher.cfg.Runtime.Upstream(ctx, ws.ID)
	if err != nil {
		return fmt.Errorf("find the workspace's container: %w", err)
	}
	if up.Agent == "" {
		return ErrNoAgent
	}
	client := &agent.Client{Addr: up.Agent, Secret: up.Secret}
	hello, err := client.Hello(ctx)
	if err != nil {
		return refusal(err)
	}
	if hello.Version < agent.Oldest || hello.Oldest > agent.Version {
		return ErrNoAgent
	}
	x.Workspace, x.Agent, x.container = ws, client, up.ContainerID
	return nil
}

// refusal returns what it means that an agent refused a request that needs only the
// secret.
func refusal(err error) error {
	var refused *agent.RefusedError
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Status == http.StatusNotFound: // it does not know the request
		return fmt.Errorf("%w: %w", ErrNoAgent, err)
	}
	return fmt.Errorf("%w: %w", agent.ErrUnreachable, err)
}

// follow returns why the access ends.
func (x *Attachment) follow() error {
	for {
		if err := x.pause(x.attacher.cfg.CheckInterval); err != nil {
			return err
		}
		// After an event all attachments of a workspace ask at the same time. None
		// takes an answer to a question from before its event.
		key := string(x.Workspace.ID) + " " + x.caller.UserID + " " + strconv.FormatUint(x.attacher.events.Load(), 10)
		checked := x.attacher.checks.DoChan(key, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), checkTimeout)
			defer cancel()
			return x.attacher.check(ctx, x.caller, x.Workspace.ID)
		})
		var seen singleflight.Result
		select {
		case seen = <-checked:
		case <-x.ctx.Done(): // Close must not wait for the check
			return context.Cause(x.ctx)
		}
		if errors.Is(seen.Err, ErrAccessEnded) || errors.Is(seen.Err, ErrStopped) {
			return seen.Err
		}
		if container, _ := seen.Val.(string); seen.Err == nil && container != x.container {
			return ErrStopped
		}
	}
}

// checkTimeout limits a check, for which all attachments of a workspace may wait.
const checkTimeout = 10 * time.Second

// check returns the ID of the container that the caller may use. With any error but
// ErrAccessEnded and ErrStopped nothing is known.
func (a *Attacher) check(ctx context.Context, caller workspace.Caller, id workspace.ID) (container string, err error) {
	ws, err := a.cfg.Store.EnterableWorkspace(ctx, caller, id)
	switch code := workspace.CodeOf(err); {
	case code == workspace.CodeNotFound, code == workspace.CodeForbidden, code == workspace.CodeGone:
		return "", ErrAccessEnded
	case err != nil:
		return "", err
	}
	switch lifecycle.OpeningOf(ws) {
	case lifecycle.OpenNow:
	case lifecycle.OpenDeleted:
		return "", ErrAccessEnded
	default:
		return "", ErrStopped
	}
	up, err := a.cfg.Runtime.Upstream(ctx, id)
	if errors.Is(err, runtime.ErrNotFound) {
		err = ErrStopped
	}
	return up.ContainerID, err
}
