package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"codehub/api"
	"codehub/internal/auth"
	"codehub/internal/bus"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// events streams the caller's workspaces (design §10): what there is, a
// heartbeat to say that this was all, and then what changes. It ends with the
// session.
func (s *server) events(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	Quiet(r.Context())
	ctx, stop := s.cfg.Auth.Watch(r.Context(), id.Caller.Session)
	defer stop()
	sub, err := s.cfg.Hub.Subscribe(ctx, id.Caller.UserID)
	if errors.Is(err, bus.ErrTooMany) {
		return workspace.Errorf(codeTooManyStreams, "Too many event streams are open for this account: at most %d.", bus.MaxPerUser)
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	st := &stream{server: s, w: w, rc: http.NewResponseController(w), caller: id.Caller, shown: map[workspace.ID]bool{}}
	if r.Method == http.MethodHead {
		return nil
	}
	if err := st.run(ctx, sub); ctx.Err() == nil && !errors.Is(err, bus.ErrCut) {
		return errors.Join(errStarted, err)
	}
	return nil
}

// stream is one reader of events. shown is what it was told: true for a
// workspace that is there, false for one that it knows to be deleted.
type stream struct {
	*server
	w      http.ResponseWriter
	rc     *http.ResponseController
	caller workspace.Caller
	shown  map[workspace.ID]bool
}

// run streams until something ends it, and says what.
func (st *stream) run(ctx context.Context, sub *bus.Subscription) error {
	beat := time.Now().Add(st.cfg.Heartbeat)
	for {
		next, cancel := context.WithDeadline(ctx, beat)
		ev, err := sub.Next(next)
		cancel()
		switch {
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			err = st.heartbeat(&beat)
		case err != nil:
		case ev.Kind == bus.Resync:
			if err = st.all(ctx); err == nil {
				err = st.heartbeat(&beat)
			}
		case ev.Kind == bus.Gone:
			err = st.deleted(ev.ID)
		default:
			err = st.updated(ev.Workspace)
		}
		if err == nil {
			err = st.rc.Flush()
		}
		if err != nil {
			return err
		}
	}
}

func (st *stream) heartbeat(next *time.Time) error {
	*next = time.Now().Add(st.cfg.Heartbeat)
	return st.send(api.EventHeartbeat, struct{}{})
}

// all sends everything there is, and the deletion of everything that this
// reader was shown and that is there no longer.
func (st *stream) all(ctx context.Context) error {
	gone := make(map[workspace.ID]bool)
	for id, there := range st.shown {
		if there {
			gone[id] = true
		}
	}
	for _, deleted := range []bool{false, true} {
		f := postgres.Filter{Limit: maxPage, Deleted: deleted}
		for {
			list, next, err := st.cfg.Store.ListWorkspaces(ctx, st.caller, f)
			if err != nil {
				return fmt.Errorf("list the workspaces: %w", err)
			}
			for _, ws := range list {
				delete(gone, ws.ID)
				if err := st.updated(ws); err != nil {
					return err
				}
			}
			if f.Cursor = next; next == "" {
				break
			}
		}
	}
	for id := range gone {
		if err := st.deleted(id); err != nil {
			return err
		}
	}
	return nil
}

func (st *stream) updated(ws workspace.Workspace) error {
	if ws.DeletedAt != nil {
		return st.deleted(ws.ID)
	}
	st.shown[ws.ID] = true
	return st.send(api.EventUpdated, st.view(ws))
}

// deleted is sent once, and to readers that never heard of the workspace too:
// they may have kept it from an earlier connection.
func (st *stream) deleted(id workspace.ID) error {
	if there, known := st.shown[id]; known && !there {
		return nil
	}
	st.shown[id] = false
	return st.send(api.EventDeleted, api.Deleted{ID: string(id)})
}

func (st *stream) send(event string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	if err := st.rc.SetWriteDeadline(time.Now().Add(st.cfg.WriteWithin)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(st.w, "event: %s\ndata: %s\n\n", event, b)
	return err
}
