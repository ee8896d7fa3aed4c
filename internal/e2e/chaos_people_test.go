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

// person is a user who asks any server for anything, and goes on whatever the
// answer is.
type person struct {
	c     *cluster
	name  string
	id    string
	token string
	rng   *rand.Rand
	via   []*server // one for each member
	does  []deed

	all     []*owned // in the order in which they were made
	deleted *owned   // the last one
	made    int
	tally   map[string]int // answers, by what was asked
}

// owned is a workspace of a person's, and what must be in its home: every file
// of which the IDE has said that it was written. No name is written twice.
type owned struct {
	id, name string
	files    map[string]string
	writes   int
}

// deed is one of the things that a person does, and how often among all.
type deed struct {
	name   string
	weight int
	do     func(p *person, ctx context.Context, on *server, w *owned, n int) error
}

var wishesOf = []string{"RUNNING", "RUNNING", "STANDBY", "ARCHIVED"}

// want is a deed on one's own: the others need a workspace.
var (
	create = deed{"create", 3, func(p *person, ctx context.Context, on *server, _ *owned, n int) error {
		return p.create(ctx, on, wishesOf[n%4])
	}}
	wish = deed{"want", 16, func(p *person, ctx context.Context, on *server, w *owned, n int) error {
		_, err := on.api.Want(ctx, w.id, wishesOf[n%4], n%5 != 0)
		return err
	}}
	write = deed{"write", 14, func(p *person, ctx context.Context, on *server, w *owned, n int) error { return p.write(ctx, on, w, n) }}
	visit = deed{"visit", 6, func(p *person, ctx context.Context, on *server, w *owned, _ int) error { return p.visit(ctx, on, w) }}
	patch = deed{"patch", 3, func(p *person, ctx context.Context, on *server, w *owned, n int) error {
		memo := fmt.Sprint("memo ", n)
		_, err := on.api.Update(ctx, w.id, api.UpdateWorkspace{Memo: &memo})
		return err
	}}
	discard = deed{"delete", 1, func(p *person, ctx context.Context, on *server, w *owned, n int) error {
		_, err := on.api.Delete(ctx, w.id, n%2 == 0)
		p.deleted = w
		return err
	}}
	undelete = deed{"undelete", 3, func(p *person, ctx context.Context, on *server, w *owned, _ int) error {
		if p.deleted != nil {
			w = p.deleted
		}
		_, err := on.api.Undelete(ctx, w.id)
		return err
	}}
	recovery = deed{"recover", 3, func(p *person, ctx context.Context, on *server, w *owned, _ int) error {
		_, err := on.api.Recover(ctx, w.id, api.Recover{})
		return err
	}}
	cancels = deed{"cancel", 4, func(p *person, ctx context.Context, on *server, w *owned, _ int) error {
		_, err := on.api.Cancel(ctx, w.id)
		return err
	}}
	forceStop = deed{"force stop", 2, func(p *person, ctx context.Context, on *server, w *owned, _ int) error {
		_, err := on.api.Stop(ctx, w.id, true)
		return err
	}}
)

// everything that a person can do, and what leaves everything where it can be
// compared with what was wished last.
var (
	everything = []deed{create, wish, write, visit, patch, discard, undelete, recovery, cancels, forceStop}
	ordinary   = []deed{wish, write, visit}
)

// most is how many workspaces a person has at once, the deleted ones aside.
const most = 4

// newPerson makes a user of that name.
func (c *cluster) newPerson(name string, rng *rand.Rand, does []deed) *person {
	c.Helper()
	p := &person{c: c, name: name, rng: rng, does: does, tally: map[string]int{}}
	p.id, p.token = c.user(name)
	for _, m := range c.members {
		p.via = append(p.via, m.as(c.test, p.token))
	}
	return p
}

// live acts until stop is closed.
func (p *person) live(stop <-chan struct{}, pause time.Duration) {
	total := 0
	for _, d := range p.does {
		total += d.weight
	}
	for {
		// All that is random is drawn before anything depends on answers.
		at, on, which, n := p.rng.IntN(total), p.via[p.rng.IntN(len(p.via))], p.rng.Int(), p.rng.Int()
		wait := pause/2 + time.Duration(p.rng.Int64N(int64(pause)))
		select {
		case <-stop:
			return
		case <-time.After(wait):
		}
		for _, d := range p.does {
			if at -= d.weight; at >= 0 {
				continue
			}
			p.do(d, on, which, n)
			break
		}
	}
}

func (p *person) do(d deed, on *server, which, n int) {
	var w *owned
	if d.name != create.name {
		if len(p.all) == 0 {
			return
		}
		recent := p.all[max(0, len(p.all)-2*most):]
		w = recent[which%len(recent)]
	}
	ctx, cancel := context.WithTimeout(p.c.Context(), 5*time.Second)
	defer cancel()
	err := d.do(p, ctx, on, w, n)
	said := "done"
	if err != nil {
		var ide ideError
		switch said = codehub.CodeOf(err); {
		case errors.As(err, &ide):
			said = ide.Error()
		case said == "":
			said = "no answer"
		}
	}
	p.tally[d.name+": "+said]++
}

func (p *person) create(ctx context.Context, on *server, desired string) error {
	alive, err := on.api.List(ctx, codehub.Filter{})
	if err != nil || len(alive) >= most {
		return err
	}
	p.made++
	w, err := on.api.Create(ctx, api.CreateWorkspace{Name: fmt.Sprint(p.name, " ", p.made), DesiredState: &desired})
	if err == nil {
		p.all = append(p.all, &owned{id: w.ID, name: w.Name, files: map[string]string{}})
	}
	return err
}

// ideError is an answer of a workspace, or of the proxy in its place, that is none.
type ideError int

func (e ideError) Error() string { return fmt.Sprintf("answered %d", int(e)) }

// write has the IDE write a new file; it has to be there for ever once that
// was answered.
func (p *person) write(ctx context.Context, on *server, w *owned, n int) error {
	if running, err := on.api.List(ctx, codehub.Filter{Phase: "RUNNING"}); err == nil && len(running) > 0 { // it makes little sense elsewhere
		if i := slices.IndexFunc(p.all, func(o *owned) bool { return o.id == running[n%len(running)].ID }); i >= 0 {
			w = p.all[i]
		}
	}
	if w.writes > 60 {
		return nil
	}
	w.writes++
	name, content := fmt.Sprintf("chaos-%d.txt", w.writes), strings.Repeat(fmt.Sprint(n), 1+n%300)
	resp, err := p.ask(ctx, on, http.MethodPut, w.id, "/file?path="+name, content, nil)
	if err != nil {
		return err
	}
	if resp != http.StatusOK {
		return ideError(resp)
	}
	w.files["./"+name] = digest(content)
	return nil
}

func (p *person) visit(ctx context.Context, on *server, w *owned) error {
	_, err := p.ask(ctx, on, http.MethodGet, w.id, "/", "", http.Header{
		"Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}, "Accept": {"text/html"},
	})
	return err
}

var stays = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

func (p *person) ask(ctx context.Context, on *server, method, id, path, body string, header http.Header) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, on.URL+"/w/"+id+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set(api.TokenHeader, p.token)
	resp, err := stays.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// arrives waits until all of a person's workspaces are where they are wanted.
// From an error they take the way out that is theirs, unless it says that
// something is lost; what waits for a slot they want no more.
func (p *person) arrives(on *server, within time.Duration) []api.Workspace {
	on.Helper()
	deadline := time.Now().Add(within)
	for {
		all := p.c.settled(on, time.Until(deadline))
		stuck := slices.DeleteFunc(slices.Clone(all), func(w api.Workspace) bool { return w.Phase != "ERROR" && w.NextDesiredState == nil })
		if len(stuck) == 0 {
			return all
		}
		for _, w := range stuck {
			if w.Phase != "ERROR" {
				on.Logf("%s waits for a slot, and is wanted %s again", w.Name, w.DesiredState)
				if _, err := on.api.Want(on.Context(), w.ID, w.DesiredState, true); err != nil && time.Now().After(deadline) {
					on.Fatal(err)
				}
				continue
			}
			on.Logf("%s is in ERROR (%s: %s) and is recovered", w.Name, str(w.ErrorReason), str(w.ErrorMessage))
			if r := str(w.ErrorReason); r == "DataLost" || r == "ArchiveCorrupted" {
				on.Fatalf("%s of %s: %s: %s", w.Name, p.name, r, str(w.ErrorMessage))
			}
			_, err := on.api.Recover(on.Context(), w.ID, api.Recover{})
			switch codehub.CodeOf(err) {
			case "", "not_in_error":
			case "workspace_limit_exceeded": // others have taken its place
				_, err = on.api.Stop(on.Context(), w.ID, true)
			}
			if err != nil && time.Now().After(deadline) {
				on.Fatal(err)
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// whole compares the homes of a person's workspaces, as they are, with what
// was written to them.
func (p *person) whole(all []api.Workspace) (files int) {
	for _, w := range all {
		i := slices.IndexFunc(p.all, func(o *owned) bool { return o.id == w.ID })
		if i < 0 {
			continue // the answer to its making was lost, and nobody wrote to it
		}
		on := p.via[0]
		var home homeState
		switch {
		case w.Phase == "ARCHIVED":
			var err error
			if home, _, err = p.c.bucket.unpack(on.TB, str(w.ArchiveKey)); err != nil {
				on.Errorf("the archive of %s: %v", w.Name, err)
				continue
			}
		case len(p.all[i].files) > 0:
			home = on.look(w.ID)
		}
		for name, want := range p.all[i].files {
			if got := home[name].SHA256; got != want {
				on.Errorf("%s of %s (%s, %s) is %q, not what the IDE was told to write", name, w.Name, w.ID, w.Phase, got)
			}
			files++
		}
	}
	return files
}
