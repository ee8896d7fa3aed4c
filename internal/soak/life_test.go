package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/archive/archivetest"
)

// life is one workspace: what it goes through, and what must be in its home.
// Its methods are called by one goroutine at a time.
type life struct {
	w    *world
	name string
	rng  *rand.Rand
	id   string // empty until its creation is acknowledged or seen

	home    home              // the last content that was synced
	dirty   bool              // furnish was interrupted: workDir may hold anything
	added   map[string]string // files that the IDE has synced since → content
	writing map[string]bool   // files that the IDE was asked to write and did not acknowledge
	deleted time.Time         // a deletion was asked for first at that time

	// The database was restored from a backup: it need not know what was deleted
	// or created since, but must know or find every home.
	rolledBack bool

	mu   sync.Mutex
	said []string // what it went through, for the log
}

func (l *life) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(l.said) > 200 {
		l.said = slices.Delete(l.said, 0, 100)
	}
}

func (l *life) history() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%s (%s): %s", l.name, l.id, strings.Join(l.said, "; "))
}

// act takes random steps until the context ends. Errors are expected: the server,
// Docker or the machine may go away at any moment.
func (l *life) act(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.step(ctx); err != nil && ctx.Err() == nil {
			l.note("%v", err)
			l.pause(ctx, 300)
		}
	}
}

var desires = []string{"ARCHIVED", "ARCHIVED", "STANDBY", "RUNNING"}

func (l *life) step(ctx context.Context) error {
	if l.id == "" {
		return l.create(ctx)
	}
	if !l.deleted.IsZero() { // it may stay deleted until the fault
		if l.rng.IntN(3) == 0 {
			return l.undelete(ctx)
		}
		l.pause(ctx, 1000)
		return nil
	}
	if l.home == nil {
		return l.furnish(ctx)
	}
	switch l.rng.IntN(12) {
	case 0, 1:
		return l.furnish(ctx)
	case 2, 3:
		return l.want(ctx, desires[l.rng.IntN(len(desires))])
	case 4: // one after the other, without waiting
		for range 1 + l.rng.IntN(3) {
			if err := l.ask(ctx, desires[l.rng.IntN(len(desires))]); err != nil {
				return err
			}
			l.pause(ctx, 800)
		}
		return nil
	case 5, 6:
		if err := l.want(ctx, "RUNNING"); err != nil {
			return err
		}
		return l.write(ctx)
	case 7:
		if err := l.want(ctx, "ARCHIVED"); err != nil {
			return err
		}
		return l.want(ctx, "STANDBY")
	case 8:
		if err := l.ask(ctx, []string{"ARCHIVED", "STANDBY"}[l.rng.IntN(2)]); err != nil {
			return err
		}
		l.pause(ctx, 500)
		l.note("cancel")
		_, err := l.w.hub.Cancel(ctx, l.id)
		return err
	case 9:
		l.killJob(ctx)
		return nil
	case 10:
		l.note("stop by force")
		_, err := l.w.hub.Stop(ctx, l.id, true)
		return err
	default:
		return l.delete(ctx)
	}
}

func (l *life) pause(ctx context.Context, most int) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(l.rng.IntN(most)) * time.Millisecond):
	}
}

func (l *life) create(ctx context.Context) error {
	desired := []string{"STANDBY", "STANDBY", "RUNNING", "ARCHIVED"}[l.rng.IntN(4)]
	l.note("create")
	made, err := l.w.hub.Create(ctx, api.CreateWorkspace{Name: l.name, DesiredState: &desired})
	if err == nil {
		l.id = made.ID
		return nil
	}
	return errors.Join(err, l.find(ctx))
}

// find learns the id of a workspace whose creation was not acknowledged.
func (l *life) find(ctx context.Context) error {
	all, err := l.w.hub.List(ctx, codehub.Filter{})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(w api.Workspace) bool { return w.Name == l.name }); i >= 0 {
		l.id = all[i].ID
	}
	return nil
}

// ask wants a state and does not wait for it.
func (l *life) ask(ctx context.Context, desired string) error {
	l.note("want %s", desired)
	_, err := l.w.hub.Want(ctx, l.id, desired, true)
	return err
}

// want waits until the state is reached.
func (l *life) want(ctx context.Context, desired string) error {
	if err := l.ask(ctx, desired); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		w, err := l.w.hub.Get(ctx, l.id)
		switch {
		case err == nil && w.Phase == "ERROR":
			l.note("in ERROR: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
			if _, err := l.w.hub.Recover(ctx, l.id, api.Recover{}); err != nil {
				return err
			}
		case err == nil && atRest(w) && w.Phase == desired:
			l.note("is %s", desired)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s: %w", desired, ctx.Err())
		}
		l.pause(ctx, 100)
	}
}

func atRest(w api.Workspace) bool {
	return w.Operation == "NONE" && w.Phase == w.DesiredState && w.NextDesiredState == nil && w.DeletedAt == nil
}

// folder is where the home of a workspace is on the host.
func (l *life) folder(ctx context.Context) (string, error) {
	if l.w.local {
		return l.w.path(dataDir + "/homes/" + l.id + "/home"), nil
	}
	v, err := l.w.docker.VolumeInspect(ctx, "ws-"+l.id+"-home", client.VolumeInspectOptions{})
	if err != nil {
		return "", err
	}
	return l.w.path(v.Volume.Mountpoint), nil
}

// furnish changes the home in STANDBY, which nothing else does then.
func (l *life) furnish(ctx context.Context) error {
	if err := l.want(ctx, "STANDBY"); err != nil {
		return err
	}
	dir, err := l.folder(ctx)
	if err != nil {
		return err
	}
	if len(l.added) > 0 || len(l.writing) > 0 { // what the IDE wrote is content like any other from here on
		if diff, err := l.compare(dir); err != nil || diff != "" {
			return fmt.Errorf("before furnishing: %s (%w)", diff, err)
		}
	}
	l.note("furnish")
	l.dirty = true
	if l.home == nil && l.rng.IntN(3) == 0 {
		if err := fill(dir); err != nil {
			return err
		}
	}
	if err := furnish(dir, l.rng); err != nil {
		return err
	}
	seen, err := snapshot(dir)
	if err != nil {
		return err
	}
	l.home, l.dirty = seen, false
	return nil
}

// write has the IDE write and sync a file.
func (l *life) write(ctx context.Context) error {
	name := fmt.Sprintf("ide-%d.txt", l.rng.IntN(4))
	content := strings.Repeat(fmt.Sprint(l.rng.Uint64()), 1+l.rng.IntN(2000))
	l.note("write %s", name)
	l.writing[name] = true
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, l.w.url+"/w/"+l.id+"/file?path="+name, strings.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set(api.TokenHeader, l.w.token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("write %s: %s %s (%w)", name, resp.Status, body, err)
	}
	l.added[name] = content
	delete(l.writing, name)
	return nil
}

func (l *life) killJob(ctx context.Context) {
	remove := l.rng.IntN(2) == 0
	for _, kind := range []string{"archive", "restore"} {
		name := "codehub-" + kind + "-" + l.id
		var err error
		if remove {
			_, err = l.w.docker.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true})
		} else {
			_, err = l.w.docker.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "KILL"})
		}
		if err == nil {
			l.note("killed its %s job, removed: %v", kind, remove)
		}
	}
}

func (l *life) delete(ctx context.Context) error {
	l.note("delete")
	l.deleted = time.Now()
	_, err := l.w.hub.Delete(ctx, l.id, true)
	return err
}

// errPurged: the deletion cannot be taken back any more, as it should be.
var errPurged = errors.New("deleted past its grace")

func (l *life) undelete(ctx context.Context) error {
	l.note("undelete")
	_, err := l.w.hub.Undelete(ctx, l.id)
	var e *codehub.Error
	switch {
	case err == nil, codehub.CodeOf(err) == "not_deleted":
		l.deleted = time.Time{}
		return nil
	case errors.As(err, &e) && (e.Status == http.StatusGone || e.Status == http.StatusNotFound):
		if !l.deleted.IsZero() && time.Since(l.deleted) > l.w.grace {
			return l.begin(errPurged)
		}
	}
	return err
}

// begin makes another workspace of it.
func (l *life) begin(why error) error {
	l.note("%v", why)
	l.w.mu.Lock()
	l.w.made++
	l.name = fmt.Sprintf("life %d", l.w.made)
	l.w.mu.Unlock()
	l.id, l.home, l.dirty, l.deleted = "", nil, false, time.Time{}
	l.added, l.writing = map[string]string{}, map[string]bool{}
	return why
}

// compare holds the home in dir against what must be in it, which it is from
// then on. The difference is empty if it is.
func (l *life) compare(dir string) (diff string, err error) {
	got, err := snapshot(dir)
	if err != nil {
		return "", err
	}
	if l.home == nil {
		if !l.dirty { // never furnished: whatever the image has
			return "", nil
		}
		l.home, l.dirty = got, false
		return "", nil
	}
	// What such a file holds is not known until a write to it is acknowledged: after
	// a power cut it may be empty, or zeros that no block is written for.
	maps.DeleteFunc(got, func(name string, _ archivetest.State) bool { return l.writing[strings.TrimPrefix(name, "./")] })
	want, seen := maps.Clone(l.home), maps.Clone(got)
	if l.dirty {
		want, seen = withoutWork(want), withoutWork(seen)
	}
	var wrong []string
	for name, content := range l.added {
		if s := seen["./"+name]; !l.writing[name] && s.SHA256 != digest(content) {
			wrong = append(wrong, fmt.Sprintf("%s, which the IDE had synced, has size %d and SHA-256 %q", name, s.Size, s.SHA256))
		}
		delete(want, "./"+name)
		delete(seen, "./"+name)
	}
	for name := range l.writing {
		delete(want, "./"+name)
	}
	if d := archivetest.Diff(want, seen); d != "" {
		wrong = append(wrong, d)
	}
	if len(wrong) == 0 {
		l.home, l.dirty, l.added = got, false, map[string]string{}
	}
	return strings.Join(wrong, "\n"), nil
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
