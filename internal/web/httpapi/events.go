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
	"codehub/internal/bus"
	"codehub/internal/gateway/eventstream"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/web/accesslog"
	"codehub/internal/workspace"
)

// events streams the caller's workspaces (docs/api.md): first the present ones, then
// a heartbeat that ends this list, then each change. It ends with the session.
func (s *server) events(w http.ResponseWriter, r *http.Request, id auth.Identity) error {
	accesslog.Quiet(r.Context())
	out := eventstream.New(w, r, s.cfg.WriteWithin)
	ctx, stop := s.cfg.Auth.Watch(out.Context(), id.Caller.Session)
	release := func() { stop(); out.Close() }
	sub, err := s.cfg.Hub.Subscribe(ctx, id.Caller.UserID, out.Wake)
	if errors.Is(err, bus.ErrTooMany) {
		err = workspace.Errorf(codeTooManyStreams, "Too many event streams are open for this account: at most %d.", bus.MaxPerUser)
	}
	if err != nil {
		release()
		return err
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		release()
		return nil
	}
	st := &stream{server: s, out: out, sub: sub, caller: id.Caller, shown: map[workspace.ID]uint64{}, seed: maphash.MakeSeed()}
	request := accesslog.ID(r.Context())
	out.Run(func() (time.Time, error) { return st.step(ctx) }, func(err error) {
		if ctx.Err() == nil && !errors.Is(err, bus.ErrTooSlow) {
			s.log.InfoContext(ctx, "answer broken off", "request_id", request, "err", err)
		}
		release()
	})
	return nil
}

// stream is one reader of events.
type stream struct {
	*server
	out    *eventstream.Stream
	sub    *bus.Subscription
	caller workspace.Caller
	// shown has a digest of each workspace as it was last sent, or deleted, so that
	// the stream sends no state twice.
	shown map[workspace.ID]uint64
	seed  maphash.Seed // of the digests
	beat  time.Time    // of the next heartbeat
}

// deleted is the digest of a workspace whose deletion was sent.
const deleted = 0

// step sends the next event, so that none waits for a later one. Without an event the
// next step is the heartbeat.
func (st *stream) step(ctx context.Context) (next time.Time, err error) {
	ev, ok, err := st.sub.Next(ctx)
	switch {
	case err != nil:
		return time.Time{}, err
	case !ok:
		if !st.beat.After(time.Now()) {
			err = st.heartbeat()
		}
		return st.beat, err
	case ev.Kind == bus.Resync:
		if err = st.all(ctx); err == nil {
			err = st.heartbeat()
		}
	case ev.Kind == bus.Gone:
		err = st.deleted(ev.ID)
	default:
		err = st.updated(ev.Workspace)
	}
	return time.Now(), err
}

func (st *stream) heartbeat() error {
	st.beat = time.Now().Add(st.cfg.Heartbeat)
	return st.send(api.EventHeartbeat, []byte("{}"))
}

// all sends all workspaces. It also sends the deletion of each workspace that no longer
// exists and that this reader has received, or may have on an earlier connection.
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

// again reads a workspace that was in neither list. It exists if its deletion was
// undone between the two.
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
	if !st.caller.Uses(ws.OwnerID, ws.ID) {
		return nil // not within the limits of the token
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

// The deletion is also sent to readers that did not receive the workspace: they may
// know it from an earlier connection.
func (st *stream) deleted(id workspace.ID) error {
	if st.caller.Only != "" && st.caller.Only != id {
		return nil
	}
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
	_, err := fmt.Fprintf(st.out, "event: %s\ndata: %s\n\n", event, data)
	return err
}
