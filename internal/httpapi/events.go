package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"time"

	"codehub/api"
	"codehub/internal/accesslog"
	"codehub/internal/auth"
	"codehub/internal/bus"
	"codehub/internal/inbound"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// events streams the caller's workspaces (docs/api.md): first the present ones, then
// a heartbeat that ends this list, then each change. It ends with the session.
func (s *server) events(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	accesslog.Quiet(r.Context())
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
	st := &stream{server: s, w: w, rc: http.NewResponseController(w), caller: id.Caller, shown: map[workspace.ID]uint64{}, seed: maphash.MakeSeed()}
	if r.Method == http.MethodHead {
		return nil
	}
	defer inbound.Stream(w, r)()
	if err := st.run(ctx, sub); ctx.Err() == nil && !errors.Is(err, bus.ErrTooSlow) {
		return errors.Join(errStarted, err)
	}
	return nil
}

// stream is one reader of events.
type stream struct {
	*server
	w      http.ResponseWriter
	rc     *http.ResponseController
	caller workspace.Caller
	// shown holds a digest of each workspace as it was last sent, or deleted.
	// Nothing is sent twice.
	shown map[workspace.ID]uint64
	seed  maphash.Seed // of the digests
	// unsent is whether something waits for a flush.
	unsent bool
}

// deleted stands for a workspace that the reader knows to be gone.
const deleted = 0

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
			err = st.flush()
		}
		if err != nil {
			return err
		}
	}
}

func (st *stream) heartbeat(next *time.Time) error {
	*next = time.Now().Add(st.cfg.Heartbeat)
	return st.send(api.EventHeartbeat, []byte("{}"))
}

// all sends everything there is, and the deletion of everything that this
// reader was shown, or may have been on an earlier connection, and that is
// there no longer.
func (st *stream) all(ctx context.Context) error {
	gone := make(map[workspace.ID]bool)
	for id, as := range st.shown {
		if as != deleted {
			gone[id] = true
		}
	}
	f := postgres.Filter{Limit: maxPage}
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
	list, err := st.cfg.Store.RecentlyDeleted(ctx, st.caller)
	if err != nil {
		return fmt.Errorf("list the deleted workspaces: %w", err)
	}
	for _, id := range list {
		delete(gone, id)
		if err := st.deleted(id); err != nil {
			return err
		}
	}
	for id := range gone {
		if err := st.again(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// again reads a workspace that was in neither list. It may still exist, if its
// deletion was undone between the two.
func (st *stream) again(ctx context.Context, id workspace.ID) error {
	ws, err := st.cfg.Store.Workspace(ctx, st.caller, id)
	switch code := workspace.CodeOf(err); {
	case err == nil:
		return st.updated(ws)
	case code == workspace.CodeNotFound || code == workspace.CodeForbidden:
		return st.deleted(id)
	}
	return fmt.Errorf("read a workspace: %w", err)
}

func (st *stream) updated(ws workspace.Workspace) error {
	if ws.DeletedAt != nil {
		return st.deleted(ws.ID)
	}
	data, err := json.Marshal(st.view(ws))
	if err != nil {
		return err
	}
	digest := max(maphash.Bytes(st.seed, data), deleted+1)
	if st.shown[ws.ID] == digest {
		return nil
	}
	st.shown[ws.ID] = digest
	return st.send(api.EventUpdated, data)
}

// deleted is sent to readers that never heard of the workspace too: they may
// have kept it from an earlier connection.
func (st *stream) deleted(id workspace.ID) error {
	if as, known := st.shown[id]; known && as == deleted {
		return nil
	}
	data, err := json.Marshal(api.Deleted{ID: string(id)})
	if err != nil {
		return err
	}
	st.shown[id] = deleted
	return st.send(api.EventDeleted, data)
}

func (st *stream) send(event string, data []byte) error {
	if err := st.rc.SetWriteDeadline(time.Now().Add(st.cfg.WriteWithin)); err != nil {
		return err
	}
	st.unsent = true
	_, err := fmt.Fprintf(st.w, "event: %s\ndata: %s\n\n", event, data)
	return err
}

// flush sends what waits. It has the time that the last of it was given.
func (st *stream) flush() error {
	if !st.unsent {
		return nil
	}
	st.unsent = false
	if err := st.rc.Flush(); err != nil {
		return err
	}
	// HTTP/2 resets a stream at its deadline, even if nothing is being written.
	return st.rc.SetWriteDeadline(time.Time{})
}
