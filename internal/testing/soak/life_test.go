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
	"codehub/internal/testing/archivetest"
)

// life is one workspace with the expected content of its home. Only one
// goroutine at a time calls its methods.
type life struct {
	world *world
	name  string
	rng   *rand.Rand
	id    string // empty until its creation is acknowledged or seen

	lastHome home              // the last synced content
	dirty    bool              // refillHome was interrupted: workDir may have any content
	added    map[string]string // files that the IDE synced since then → content
	writing  map[string]bool   // files with a write that the IDE has not acknowledged
	deleted  time.Time         // time of the deletion request

	mu    sync.Mutex
	steps []string // for the log
}

func (l *life) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.steps = append(l.steps, time.Now().UTC().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	if len(l.steps) > 200 {
		l.steps = slices.Delete(l.steps, 0, 100)
	}
}

func (l *life) history() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%s (%s): %s", l.name, l.id, strings.Join(l.steps, "; "))
}

// act takes random steps until the context ends. Errors are expected, because
// the server, Docker or the machine may fail at any time.
func (l *life) act(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.step(ctx); err != nil && ctx.Err() == nil {
			l.note("%v", err)
			l.pause(ctx, 300)
		}
	}
}

var desiredStates = []string{"ARCHIVED", "ARCHIVED", "STANDBY", "RUNNING"}

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
	if l.lastHome == nil {
		return l.refill(ctx)
	}
	switch l.rng.IntN(12) {
	case 0, 1:
		return l.refill(ctx)
	case 2, 3:
		return l.reach(ctx, desiredStates[l.rng.IntN(len(desiredStates))])
	case 4: // several desired states without waiting
		for range 1 + l.rng.IntN(3) {
			if err := l.setDesired(ctx, desiredStates[l.rng.IntN(len(desiredStates))]); err != nil {
				return err
			}
			l.pause(ctx, 800)
		}
		return nil
	case 5, 6:
		if err := l.reach(ctx, "RUNNING"); err != nil {
			return err
		}
		return l.write(ctx)
	case 7:
		if err := l.reach(ctx, "ARCHIVED"); err != nil {
			return err
		}
		return l.reach(ctx, "STANDBY")
	case 8:
		if err := l.setDesired(ctx, []string{"ARCHIVED", "STANDBY"}[l.rng.IntN(2)]); err != nil {
			return err
		}
		l.pause(ctx, 500)
		l.note("cancel")
		_, err := l.world.api.Do(ctx, l.id, "cancel")
		return err
	case 9:
		l.killJob(ctx)
		return nil
	case 10:
		l.note("force stop")
		_, err := l.world.api.Stop(ctx, l.id, true)
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
	made, err := l.world.api.Create(ctx, api.CreateWorkspace{Name: l.name, DesiredState: &desired})
	if err == nil {
		l.id = made.ID
		return nil
	}
	return errors.Join(err, l.findID(ctx))
}

// findID looks up the id of a workspace whose creation was not acknowledged.
func (l *life) findID(ctx context.Context) error {
	all, err := l.world.api.List(ctx, codehub.Filter{})
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(all, func(w api.Workspace) bool { return w.Name == l.name }); i >= 0 {
		l.id = all[i].ID
	}
	return nil
}

// setDesired sets the desired state without waiting for it.
func (l *life) setDesired(ctx context.Context, desired string) error {
	l.note("desired state %s", desired)
	_, err := l.world.api.Want(ctx, l.id, desired, true)
	return err
}

// reach sets the desired state and waits until it is reached.
func (l *life) reach(ctx context.Context, desired string) error {
	if err := l.setDesired(ctx, desired); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		w, err := l.world.api.Get(ctx, l.id)
		switch {
		case err == nil && w.Phase == "ERROR":
			l.note("in ERROR: %s: %s", str(w.ErrorReason), str(w.ErrorMessage))
			if _, err := l.world.api.Recover(ctx, l.id, api.Recover{}); err != nil {
				return err
			}
		case err == nil && isSettled(w) && w.Phase == desired:
			l.note("is %s", desired)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("waiting for %s: %w", desired, ctx.Err())
		}
		l.pause(ctx, 100)
	}
}

func isSettled(w api.Workspace) bool {
	return w.Operation == "NONE" && w.Phase == w.DesiredState && w.NextDesiredState == nil && w.DeletedAt == nil
}

// homeFolder returns the path of the workspace's home on the host.
func (l *life) homeFolder(ctx context.Context) (string, error) {
	if l.world.local {
		return l.world.path(dataDir + "/homes/" + l.id + "/home"), nil
	}
	v, err := l.world.docker.VolumeInspect(ctx, "ws-"+l.id+"-home", client.VolumeInspectOptions{})
	if err != nil {
		return "", err
	}
	return l.world.path(v.Volume.Mountpoint), nil
}

// refill changes the home in STANDBY, when nothing else writes to it.
func (l *life) refill(ctx context.Context) error {
	if err := l.reach(ctx, "STANDBY"); err != nil {
		return err
	}
	dir, err := l.homeFolder(ctx)
	if err != nil {
		return err
	}
	if len(l.added) > 0 || len(l.writing) > 0 { // makes the IDE's files part of lastHome
		if diff, err := l.compare(dir); err != nil || diff != "" {
			return fmt.Errorf("before refillHome: %s (%w)", diff, err)
		}
	}
	l.note("refill")
	l.dirty = true
	if l.lastHome == nil && l.rng.IntN(3) == 0 {
		if err := fillWithCorpus(dir); err != nil {
			return err
		}
	}
	if err := refillHome(dir, l.rng); err != nil {
		return err
	}
	seen, err := snapshot(dir)
	if err != nil {
		return err
	}
	l.lastHome, l.dirty = seen, false
	return nil
}

// write writes and syncs a file through the IDE.
func (l *life) write(ctx context.Context) error {
	name := fmt.Sprintf("ide-%d.txt", l.rng.IntN(4))
	content := strings.Repeat(fmt.Sprint(l.rng.Uint64()), 1+l.rng.IntN(2000))
	l.note("write %s", name)
	l.writing[name] = true
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, l.world.url+"/w/"+l.id+"/file?path="+name, strings.NewReader(content))
	if err != nil {
		return err
	}
	req.Header.Set(api.TokenHeader, l.world.token)
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
			_, err = l.world.docker.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true})
		} else {
			_, err = l.world.docker.ContainerKill(ctx, name, client.ContainerKillOptions{Signal: "KILL"})
		}
		if err == nil {
			l.note("killed its %s job, removed: %v", kind, remove)
		}
	}
}

func (l *life) delete(ctx context.Context) error {
	l.note("delete")
	l.deleted = time.Now()
	_, err := l.world.api.Delete(ctx, l.id, true)
	return err
}

// errPurged says that the grace of the deletion has ended, so that it cannot be
// undeleted.
var errPurged = errors.New("deleted past its grace")

func (l *life) undelete(ctx context.Context) error {
	l.note("undelete")
	_, err := l.world.api.Do(ctx, l.id, "undelete")
	var e *codehub.Error
	switch {
	case err == nil, codehub.CodeOf(err) == "not_deleted":
		l.deleted = time.Time{}
		return nil
	case errors.As(err, &e) && (e.Status == http.StatusGone || e.Status == http.StatusNotFound):
		if !l.deleted.IsZero() && time.Since(l.deleted) > l.world.grace {
			return l.reset(errPurged)
		}
	}
	return err
}

// reset makes the life begin with a new workspace.
func (l *life) reset(why error) error {
	l.note("%v", why)
	l.world.mu.Lock()
	l.world.created++
	l.name = fmt.Sprintf("life %d", l.world.created)
	l.world.mu.Unlock()
	l.id, l.lastHome, l.dirty, l.deleted = "", nil, false, time.Time{}
	l.added, l.writing = map[string]string{}, map[string]bool{}
	return why
}

// compare returns the difference between the home in dir and its expected
// content, "" if there is none. The home in dir is the expected content from
// then on.
func (l *life) compare(dir string) (diff string, err error) {
	got, err := snapshot(dir)
	if err != nil {
		return "", err
	}
	if l.lastHome == nil {
		if !l.dirty { // any content of the image is right before the first refill
			return "", nil
		}
		l.lastHome, l.dirty = got, false
		return "", nil
	}
	// A file with an unacknowledged write may have any content: after a power
	// cut it may be empty or have zeros without a block.
	maps.DeleteFunc(got, func(name string, _ archivetest.State) bool { return l.writing[strings.TrimPrefix(name, "./")] })
	want, seen := maps.Clone(l.lastHome), maps.Clone(got)
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
		l.lastHome, l.dirty, l.added = got, false, map[string]string{}
	}
	return strings.Join(wrong, "\n"), nil
}

func str(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
