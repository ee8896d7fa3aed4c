package e2e

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
	"time"

	"codehub/api"
	codehub "codehub/client"
)

// chaosUser is a user who sends random requests to random servers and continues
// after every answer.
type chaosUser struct {
	c       *cluster
	name    string
	id      string
	token   string
	rng     *rand.Rand
	servers []*server // one for each member, with the user's token
	actions []action

	workspaces []*ownedWorkspace // in the order of their creation
	deleted    *ownedWorkspace   // the last deleted workspace
	created    int
	tally      map[string]int // number of outcomes by action
}

// ownedWorkspace is a workspace with the files that its IDE confirmed, by name
// with their digests. No file is written twice.
type ownedWorkspace struct {
	id, name string
	files    map[string]string
	writes   int
}

// action is a request that a user sends; weight is its relative frequency.
type action struct {
	name   string
	weight int
	do     func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, n int) error
}

var chaosDesiredStates = []string{"RUNNING", "RUNNING", "STANDBY", "ARCHIVED"}

// All actions but create need a workspace.
var (
	createAction = action{"create", 3, func(u *chaosUser, ctx context.Context, on *server, _ *ownedWorkspace, n int) error {
		return u.create(ctx, on, chaosDesiredStates[n%4])
	}}
	desireAction = action{"want", 16, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, n int) error {
		_, err := on.api.Want(ctx, w.id, chaosDesiredStates[n%4], n%5 != 0)
		return err
	}}
	writeAction = action{"write", 14, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, n int) error {
		return u.write(ctx, on, w, n)
	}}
	visitAction = action{"visit", 6, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, _ int) error {
		return u.visit(ctx, on, w)
	}}
	patchAction = action{"patch", 3, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, n int) error {
		memo := fmt.Sprint("memo ", n)
		_, err := on.api.Update(ctx, w.id, api.UpdateWorkspace{Memo: &memo})
		return err
	}}
	deleteAction = action{"delete", 1, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, n int) error {
		_, err := on.api.Delete(ctx, w.id, n%2 == 0)
		u.deleted = w
		return err
	}}
	undeleteAction = action{"undelete", 3, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, _ int) error {
		if u.deleted != nil {
			w = u.deleted
		}
		_, err := on.api.Do(ctx, w.id, "undelete")
		return err
	}}
	recoverAction = action{"recover", 3, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, _ int) error {
		_, err := on.api.Recover(ctx, w.id, api.Recover{})
		return err
	}}
	cancelAction = action{"cancel", 4, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, _ int) error {
		_, err := on.api.Do(ctx, w.id, "cancel")
		return err
	}}
	forceStopAction = action{"force stop", 2, func(u *chaosUser, ctx context.Context, on *server, w *ownedWorkspace, _ int) error {
		_, err := on.api.Stop(ctx, w.id, true)
		return err
	}}
)

// harmlessActions neither delete nor cancel, so that every workspace reaches
// its desired state.
var (
	allActions      = []action{createAction, desireAction, writeAction, visitAction, patchAction, deleteAction, undeleteAction, recoverAction, cancelAction, forceStopAction}
	harmlessActions = []action{desireAction, writeAction, visitAction}
)

// maxWorkspaces is the number of workspaces of a user, without deleted ones.
const maxWorkspaces = 4

// newUser creates a user.
func (c *cluster) newUser(name string, rng *rand.Rand, actions []action) *chaosUser {
	c.Helper()
	u := &chaosUser{c: c, name: name, rng: rng, actions: actions, tally: map[string]int{}}
	u.id, u.token = c.user(name)
	for _, m := range c.members {
		u.servers = append(u.servers, m.asUser(c.test, u.token))
	}
	return u
}

// live takes random actions until stop is closed.
func (u *chaosUser) live(stop <-chan struct{}, pause time.Duration) {
	total := 0
	for _, d := range u.actions {
		total += d.weight
	}
	for {
		// The random choices are made here, so that they do not depend on the
		// answers.
		at, on, which, n := u.rng.IntN(total), u.servers[u.rng.IntN(len(u.servers))], u.rng.Int(), u.rng.Int()
		wait := pause/2 + time.Duration(u.rng.Int64N(int64(pause)))
		select {
		case <-stop:
			return
		case <-time.After(wait):
		}
		for _, d := range u.actions {
			if at -= d.weight; at >= 0 {
				continue
			}
			u.do(d, on, which, n)
			break
		}
	}
}

func (u *chaosUser) do(d action, on *server, which, n int) {
	var w *ownedWorkspace
	if d.name != createAction.name {
		if len(u.workspaces) == 0 {
			return
		}
		recent := u.workspaces[max(0, len(u.workspaces)-2*maxWorkspaces):]
		w = recent[which%len(recent)]
	}
	ctx, cancel := context.WithTimeout(u.c.Context(), 5*time.Second)
	defer cancel()
	err := d.do(u, ctx, on, w, n)
	outcome := "ok"
	if err != nil {
		var ide ideError
		switch outcome = codehub.CodeOf(err); {
		case errors.As(err, &ide):
			outcome = ide.Error()
		case outcome == "":
			outcome = "no answer"
		}
	}
	u.tally[d.name+": "+outcome]++
}

func (u *chaosUser) create(ctx context.Context, on *server, desired string) error {
	alive, err := on.api.List(ctx, codehub.Filter{})
	if err != nil || len(alive) >= maxWorkspaces {
		return err
	}
	u.created++
	w, err := on.api.Create(ctx, api.CreateWorkspace{Name: fmt.Sprint(u.name, " ", u.created), DesiredState: &desired})
	if err == nil {
		u.workspaces = append(u.workspaces, &ownedWorkspace{id: w.ID, name: w.Name, files: map[string]string{}})
	}
	return err
}

// ideError is an error status of a workspace or the proxy.
type ideError int

func (e ideError) Error() string { return fmt.Sprintf("answered %d", int(e)) }

// write writes a new file through the IDE. Once the IDE has confirmed it, the
// file must not be lost.
func (u *chaosUser) write(ctx context.Context, on *server, w *ownedWorkspace, n int) error {
	if running, err := on.api.List(ctx, codehub.Filter{Phase: "RUNNING"}); err == nil && len(running) > 0 { // only a running workspace can write
		if i := slices.IndexFunc(u.workspaces, func(o *ownedWorkspace) bool { return o.id == running[n%len(running)].ID }); i >= 0 {
			w = u.workspaces[i]
		}
	}
	if w.writes > 60 {
		return nil
	}
	w.writes++
	name, content := fmt.Sprintf("chaos-%d.txt", w.writes), strings.Repeat(fmt.Sprint(n), 1+n%300)
	resp, err := u.ask(ctx, on, http.MethodPut, w.id, "/file?path="+name, content, nil)
	if err != nil {
		return err
	}
	if resp != http.StatusOK {
		return ideError(resp)
	}
	w.files["./"+name] = digest(content)
	return nil
}

func (u *chaosUser) visit(ctx context.Context, on *server, w *ownedWorkspace) error {
	_, err := u.ask(ctx, on, http.MethodGet, w.id, "/", "", http.Header{
		"Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Accept": {"text/html"},
	})
	return err
}

var noRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (u *chaosUser) ask(ctx context.Context, on *server, method, id, path, body string, header http.Header) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, on.URL+"/w/"+id+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set(api.TokenHeader, u.token)
	resp, err := noRedirects.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// awaitSettled waits until all workspaces of the user are in their desired
// states. It recovers those in ERROR, unless data is lost. For those that wait for
// a slot it sets the desired state again, which drops the queued start.
func (u *chaosUser) awaitSettled(on *server, within time.Duration) []api.Workspace {
	on.Helper()
	deadline := time.Now().Add(within)
	for {
		all := u.c.awaitSettled(on, time.Until(deadline))
		stuck := slices.DeleteFunc(slices.Clone(all), func(w api.Workspace) bool { return w.Phase != "ERROR" && w.NextDesiredState == nil })
		if len(stuck) == 0 {
			return all
		}
		for _, w := range stuck {
			if w.Phase != "ERROR" {
				on.Logf("%s waits for a slot; desired state set to %s", w.Name, w.DesiredState)
				if _, err := on.api.Want(on.Context(), w.ID, w.DesiredState, true); err != nil && time.Now().After(deadline) {
					on.Fatal(err)
				}
				continue
			}
			on.Logf("%s is in ERROR (%s: %s): recover it", w.Name, str(w.ErrorReason), str(w.ErrorMessage))
			if r := str(w.ErrorReason); r == "DataLost" || r == "ArchiveCorrupted" {
				on.Fatalf("%s of %s: %s: %s", w.Name, u.name, r, str(w.ErrorMessage))
			}
			_, err := on.api.Recover(on.Context(), w.ID, api.Recover{})
			switch codehub.CodeOf(err) {
			case "", "not_in_error":
			case "workspace_limit_exceeded": // other workspaces took its slot
				_, err = on.api.Stop(on.Context(), w.ID, true)
			}
			if err != nil && time.Now().After(deadline) {
				on.Fatal(err)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// expectFiles checks that the homes of the user's workspaces have the confirmed
// files, and returns their number.
func (u *chaosUser) expectFiles(all []api.Workspace) (files int) {
	for _, w := range all {
		i := slices.IndexFunc(u.workspaces, func(o *ownedWorkspace) bool { return o.id == w.ID })
		if i < 0 {
			continue // the response to its creation was lost, so that no file was written
		}
		on := u.servers[0]
		var home homeState
		switch {
		case w.Phase == "ARCHIVED":
			var err error
			if home, _, err = u.c.bucket.unpack(on.TB, str(w.ArchiveKey)); err != nil {
				on.Errorf("unpack the archive of %s: %v", w.Name, err)
				continue
			}
		case len(u.workspaces[i].files) > 0:
			home = on.readHome(w.ID)
		}
		for name, want := range u.workspaces[i].files {
			if got := home[name].SHA256; got != want {
				on.Errorf("%s of %s (%s, %s) has the digest %q, not that of the confirmed content", name, w.Name, w.ID, w.Phase, got)
			}
			files++
		}
	}
	return files
}
