package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"codehub/internal/gateway/inbound"
	"codehub/internal/runtime"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

const (
	defaultTail = 1000
	maxTail     = 100_000
)

// workspaceLogs sends the log of the workspace's container.
func (s *server) workspaceLogs(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	ws, err := s.find(r, id)
	if err != nil {
		return err
	}
	return s.sendLogs(w, r, id, ws.ID, s.owns(id.Caller, ws.ID))
}

// sendLogs sends the log of the container of a workspace that the caller may read, as long as
// allowed says so.
func (s *server) sendLogs(w http.ResponseWriter, r *http.Request, id auth.Identity, ws workspace.ID, allowed func(context.Context) error) error {
	q := r.URL.Query()
	follow, err := boolParam(q, "follow")
	if err != nil {
		return err
	}
	tail := defaultTail
	if v := q.Get("tail"); v != "" {
		if tail, err = strconv.Atoi(v); err != nil || tail < 0 || tail > maxTail {
			return fieldError("tail", "must be between 0 (all that is kept) and 100000.")
		}
	}
	open, are := &s.reading, "read"
	if follow {
		open, are = &s.following, "followed"
	}
	if !open.add(id.Caller.UserID, maxLogs) {
		return workspace.Errorf(codeTooManyStreams, "Too many logs are being %s for this account: at most %d.", are, maxLogs)
	}
	defer open.remove(id.Caller.UserID)
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	defer stop()
	ctx, end := s.whileAllowed(ctx, allowed)
	defer end()
	defer inbound.Stream(w, r)()
	out := &textStream{w: w, rc: http.NewResponseController(w), within: s.cfg.WriteWithin, head: r.Method == http.MethodHead}
	err = s.cfg.Logs.Logs(ctx, ws, tail, follow, out)
	switch {
	case err == nil:
		out.begin()
		return nil
	case errors.Is(err, errHead):
		return errors.Join(errStarted, err)
	case ctx.Err() != nil && (follow || !out.begun):
		return nil
	case out.begun:
		return errors.Join(errTruncated, err)
	case errors.Is(err, runtime.ErrNotFound):
		return workspace.Errorf(workspace.CodeNotFound, "This workspace has no container, so there is no log.")
	case errors.Is(err, runtime.ErrUnreachable):
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The workspace cannot be reached. Try again later.", Err: err}
	}
	return err
}

// maxLogs bounds how many logs one user follows at once, and how many they read: each holds a
// connection to Docker, which all users share.
const maxLogs = 16

// perUser counts what is being streamed, by user.
type perUser struct {
	mu sync.Mutex
	by map[string]int
}

// add counts one more, unless the user has as many as they may.
func (f *perUser) add(user string, most int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[user] >= most {
		return false
	}
	if f.by == nil {
		f.by = map[string]int{}
	}
	f.by[user]++
	return true
}

func (f *perUser) remove(user string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by[user]--; f.by[user] == 0 {
		delete(f.by, user)
	}
}

// textStream forwards text when it arrives. It delays the header until then, so that a
// failure before it can still be answered with an error.
type textStream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	within time.Duration
	head   bool
	begun  bool
}

func (t *textStream) begin() {
	if t.begun {
		return
	}
	t.begun = true
	h := t.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
}

func (t *textStream) Write(b []byte) (int, error) {
	t.begin()
	if t.head {
		return 0, errHead
	}
	if err := t.rc.SetWriteDeadline(time.Now().Add(t.within)); err != nil {
		return 0, err
	}
	n, err := t.w.Write(b)
	if err == nil {
		err = t.rc.Flush()
	}
	if err == nil {
		err = t.rc.SetWriteDeadline(time.Time{}) // HTTP/2 resets a stream at its deadline
	}
	return n, err
}

var errHead = errors.New("HEAD takes no content")
