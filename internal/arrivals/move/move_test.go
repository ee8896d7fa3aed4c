package move_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"codehub/internal/arrivals"
	"codehub/internal/postgres"
	"codehub/internal/storage/store"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/workspace"
)

// An installation moves to a bucket of either kind: a dry run changes nothing, a second run
// moves nothing again, and the source keeps its workspaces until they are to be removed.
func TestMoveAll(t *testing.T) {
	fixture.EachStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s, postgres.Limits{})
		one, two, bobs := w.archived("ann", "one", noise(300_000)), w.archived("ann", "two/with slash", ""), w.archived("bob", "one", "bob's")
		w.source.Change(`UPDATE users SET disabled = true, max_running = 7 WHERE username = 'bob'`)

		before := w.state()
		var log bytes.Buffer
		would := w.run(dryRun, func(c *config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		if said := strings.Count(log.String(), `msg="workspace would be added"`); said != 3 || strings.Contains(log.String(), `msg="workspace added"`) {
			t.Errorf("a dry run logs %s", log.String())
		}
		if w.state() != before {
			t.Error("a dry run has changed something")
		}
		r := w.run()
		if would.Left != 0 || r.Left != 0 || !would.DryRun || len(would.Workspaces) != 3 || len(would.Users) != 3 || len(r.Users) != 3 {
			t.Errorf("%+v, and then %+v", would, r)
		}
		for _, id := range []workspace.ID{one, two, bobs} {
			if res := of(t, would, id); res.Result != arrivals.Added || res.Home != nil {
				t.Errorf("%+v", res)
			}
			if res := of(t, r, id); res.Result != arrivals.Added || res.Home == nil || res.Source != arrivals.StillArchived || w.deletedThere(id) {
				t.Errorf("%+v", res)
			}
		}
		w.expectMoved(one, two, bobs)
		bob, err := w.DB.UserByName(t.Context(), "bob")
		check(t, err)
		root, err := w.DB.UserByName(t.Context(), "root")
		check(t, err)
		if !bob.Disabled || *bob.MaxRunning != 7 || root.Admin || bob.PasswordHash != "" {
			t.Errorf("%+v, %+v", bob, root)
		}

		before = w.Rows("workspaces", "users", "archives", "audit_log")
		again := w.run(remove)
		for _, id := range []workspace.ID{one, two, bobs} {
			if res := of(t, again, id); res.Result != arrivals.Already || res.Source != arrivals.Removed || !w.deletedThere(id) {
				t.Errorf("%+v", res)
			}
		}
		if w.Rows("workspaces", "users", "archives", "audit_log") != before {
			t.Error("the second run has changed the target")
		}
		if last := w.run(remove, func(c *config) { c.Selection = arrivals.Selection{Workspace: string(one)} }); last.Left != 0 || of(t, last, one).Result != arrivals.Already {
			t.Errorf("%+v", last)
		}
	})
}

func TestMovePrintsNoSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	w.archived("ann", "one", "x")
	report, err := json.Marshal(w.run(remove))
	check(t, err)
	if strings.Contains(string(report)+w.log.String(), secret) {
		t.Errorf("the value of a variable is in %s\n%s", report, w.log)
	}
	for _, d := range []*fixture.Database{w.Database, w.source.Database} {
		if strings.Contains(d.Rows("audit_log"), secret) {
			t.Error("the value of a variable is in the audit log")
		}
	}
}

// Interrupted after its first step, then after its second, and so on, the move has the same
// result.
func TestMoveInterruptedAfterEachStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	one, two := w.archived("ann", "one", noise(100_000)), w.archived("bob", "two", "x")
	passed := map[string]bool{}
	interrupted := 0
	for {
		ctx, interrupt := context.WithCancel(t.Context())
		steps := 0
		_, err := w.try(ctx, remove, func(c *config) {
			c.Step = func(step string) {
				passed[step] = true
				if steps++; steps == interrupted+1 {
					interrupt()
				}
			}
		})
		interrupt()
		if err == nil {
			break
		}
		for _, id := range []workspace.ID{one, two} {
			if _, here := w.here(id); !here && w.deletedThere(id) {
				t.Fatalf("after %d interruptions %s is deleted and not moved", interrupted, id)
			}
		}
		if interrupted++; interrupted > 100 {
			t.Fatalf("the move does not finish: %v", err)
		}
	}
	for _, step := range []string{"archived", "claimed", "swept", "fetching", "stored", "verified", "finished", "removed"} {
		if !passed[step] {
			t.Errorf("the step %s was not passed", step)
		}
	}
	if interrupted < 8 {
		t.Errorf("interrupted only %d times", interrupted)
	}
	w.expectMoved(one, two)
	if !w.deletedThere(one) || !w.deletedThere(two) || w.run(remove).Left != 0 {
		t.Error("not removed from the source")
	}
}

// A later run removes the copy of an interrupted move, also if it selects other workspaces.
func TestMoveSweepsInterruptedCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	w.archived("ann", "one", noise(100_000))
	ctx, interrupt := context.WithCancel(t.Context())
	_, err := w.try(ctx, func(c *config) {
		c.Step = func(step string) {
			if step == "stored" {
				interrupt()
			}
		}
	})
	if err == nil || len(w.objects(w.bucket)) == 0 {
		t.Fatalf("%v, %v", err, w.objects(w.bucket))
	}
	w.cfg.Selection = arrivals.Selection{User: "bob"}
	before := w.state()
	if w.run(dryRun); w.state() != before {
		t.Error("a dry run has changed something")
	}
	w.run()
	w.expectNothing()
	if n := fixture.Query[int](w, `SELECT count(*) FROM arrivals WHERE kind = 'workspace'`); n != 0 {
		t.Errorf("%d moves are still recorded, and swept by each run", n)
	}
	w.cfg.Selection = arrivals.Selection{}
	if r := w.run(); r.Left != 0 {
		t.Errorf("%+v", r)
	}
}

// A workspace that its owner starts again, at any time, stays at the source.
func TestMoveNoticesStart(t *testing.T) {
	t.Parallel()
	moments := []string{"archived", "verified", "finished"}
	if harness.Verifying() {
		moments = append(moments, "claimed", "fetching", "stored")
	}
	for _, at := range moments {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
			id := w.archived("ann", "one", noise(100_000))
			r := w.run(remove, func(c *config) {
				c.Step = func(step string) {
					if step == at {
						w.source.Change(`UPDATE workspaces SET desired_state = 'RUNNING' WHERE id = $1`, id)
					}
				}
			})
			if res := of(t, r, id); res.Result != arrivals.Left || res.Reason == "" || res.Source != "" || w.deletedThere(id) {
				t.Errorf("%+v", res)
			}
			if at != "finished" {
				w.expectNothing()
				w.archive(id, "newer") // its owner has finished
				if r := w.run(remove); r.Left != 0 {
					t.Errorf("%+v", r)
				}
				w.expectMoved(id)
				return
			}
			// Both have it now, and the report says so until one is deleted.
			w.archive(id, "newer")
			for _, f := range []func(*config){remove, dryRun, func(*config) {}} {
				if res := of(t, w.run(f), id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "changed at the source since") || w.deletedThere(id) {
					t.Errorf("%+v", res)
				}
			}
			w.Change(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, id)
			if res := of(t, w.run(remove), id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "deleted here since") || w.deletedThere(id) {
				t.Errorf("%+v", res)
			}
			w.Change(`UPDATE workspaces SET phase = 'DELETED' WHERE id = $1`, id)
			only := func(c *config) { c.Selection = arrivals.Selection{Workspace: string(id)} }
			if res := of(t, w.run(remove, only), id); res.Result != arrivals.Added || !w.deletedThere(id) {
				t.Errorf("%+v", res)
			}
			if ws, _ := w.here(id); ws.ArchiveDigest != fixture.Query[string](w.source, `SELECT archive_digest FROM workspaces WHERE id = $1`, id) {
				t.Error("the target has the older home")
			}
		})
	}
}

// A workspace that its owner has deleted at the target moves again only by its name.
func TestMoveRespectsDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	w.run()
	for _, gone := range []string{`UPDATE workspaces SET phase = 'DELETED', deleted_at = now()`, `DELETE FROM workspaces`} {
		w.Change(gone)
		for _, s := range []arrivals.Selection{{}, {User: "ann"}} {
			for _, f := range []func(*config){dryRun, remove} {
				r := w.run(f, func(c *config) { c.Selection = s })
				if res := of(t, r, id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "deleted here since") || w.deletedThere(id) {
					t.Errorf("%+v", res)
				}
			}
		}
	}
	r := w.run(remove, func(c *config) { c.Selection = arrivals.Selection{Workspace: "ann/one"} })
	if of(t, r, id).Result != arrivals.Added || !w.deletedThere(id) {
		t.Errorf("%+v", r)
	}
}

// A workspace that is not archived yet is archived first; one that cannot be is left.
func TestMoveWaitsForArchiving(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	running, stuck, broken, started := w.archived("ann", "running", ""), w.archived("ann", "stuck", ""), w.archived("ann", "broken", ""), w.archived("ann", "started", "")
	w.source.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING'`)
	w.source.Change(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, broken)
	if would := w.run(dryRun); of(t, would, running).Result != arrivals.Added || of(t, would, broken).Result != arrivals.Left ||
		fixture.Query[int](w.source, `SELECT count(*) FROM workspaces WHERE desired_state = 'ARCHIVED'`) != 0 {
		t.Errorf("%+v", would)
	}
	asked := func(id workspace.ID) func() bool {
		return func() bool {
			return fixture.Query[bool](w.source, `SELECT desired_state = 'ARCHIVED' FROM workspaces WHERE id = $1`, id)
		}
	}
	done := make(chan arrivals.Report, 1)
	go func() { r, _ := w.try(t.Context()); done <- r }()
	harness.Eventually(t, "the archiving is requested", asked(running))
	w.archive(running, "new")
	harness.Eventually(t, "the archiving is requested", asked(stuck))
	w.source.Change(`UPDATE workspaces SET phase = 'STANDBY', error_reason = 'Unrestorable', error_message = 'no such name' WHERE id = $1`, stuck)
	harness.Eventually(t, "the archiving is requested", asked(started))
	w.source.Change(`UPDATE workspaces SET desired_state = 'RUNNING' WHERE id = $1`, started)
	r := <-done
	for id, want := range map[workspace.ID]string{
		running: "", stuck: "cannot be archived: no such name", broken: "DataLost", started: "started at the source",
	} {
		if res := of(t, r, id); !strings.Contains(res.Reason, want) || (res.Result == arrivals.Added) != (want == "") {
			t.Errorf("%+v", res)
		}
	}
	w.expectMoved(running)
}

// A home that is only in a backup, as that of a new fork, is unpacked and archived before it is copied.
func TestMoveOfFork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "fork", "")
	key := fixture.Query[string](w.source, `SELECT archive_key FROM workspaces WHERE id = $1`, id)
	w.source.Change(`UPDATE workspaces SET archive_key = 'backup.manifest.zst', home_ctx = '{"state": "absent"}' WHERE id = $1`, id)
	check(t, w.sourceBucket.Store.Delete(t.Context(), key))
	wants := func(state workspace.DesiredState) func() bool {
		return func() bool {
			return fixture.Query[bool](w.source, `SELECT desired_state = $2 FROM workspaces WHERE id = $1`, id, string(state))
		}
	}
	if of(t, w.run(dryRun), id).Result != arrivals.Added || !wants(workspace.DesiredArchived)() {
		t.Error("the dry run refuses or changes it")
	}
	done := make(chan arrivals.Report, 1)
	go func() { r, _ := w.try(t.Context()); done <- r }()
	harness.Eventually(t, "the home is requested", wants(workspace.DesiredStandby))
	w.source.Change(`UPDATE workspaces SET phase = 'STANDBY', home_ctx = '{"state": "live", "claim": "c"}' WHERE id = $1`, id)
	harness.Eventually(t, "the archiving is requested", wants(workspace.DesiredArchived))
	w.archive(id, "content")
	if r := <-done; of(t, r, id).Result != arrivals.Added {
		t.Errorf("%+v", r)
	}
	w.expectMoved(id)
}

// Each clash at the target has its reason, in a dry run as well, and changes nothing.
func TestMoveRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(w *world, id workspace.ID)
		options []func(*config)
		reason  string
	}{
		"username": {func(w *world, _ workspace.ID) { w.AddUser("ANN") }, nil, "a user ANN already exists here"},
		"name": {func(w *world, _ workspace.ID) { w.AddWorkspace(w.AddUser("ann"), "one") }, []func(*config){join},
			`ann already has a workspace named "one" here`},
		"quota": {func(w *world, _ workspace.ID) { w.AddWorkspace(w.AddUser("ann"), "other") }, []func(*config){join},
			"ann has 1 workspaces here, and at most 1 are allowed"},
		"quota of deleted workspaces": {func(w *world, _ workspace.ID) {
			ann := w.AddUser("ann")
			for _, name := range []string{"x", "y"} {
				w.AddWorkspace(ann, name)
				w.Change(`UPDATE workspaces SET deleted_at = now() WHERE name = $1`, name)
			}
		}, []func(*config){join}, "ann has 0 workspaces and 2 deleted ones that are not removed yet here, and at most 2 are allowed in all"},
		"image": {func(w *world, id workspace.ID) {
			w.source.Change(`UPDATE workspaces SET image_ref = 'foreign/image' WHERE id = $1`, id)
		}, nil, "the image foreign/image is not allowed here"},
		"the workspace": {func(w *world, id workspace.ID) {
			ws := w.AddWorkspace(w.AddUser("eve"), "x")
			w.Change(`UPDATE workspaces SET id = $1 WHERE id = $2`, id, ws.ID)
		}, nil, "already has the workspace"},
		"a deleted workspace": {func(w *world, id workspace.ID) {
			ws := w.AddWorkspace(w.AddUser("eve"), "x")
			w.Change(`UPDATE workspaces SET id = $1, deleted_at = now() WHERE id = $2`, id, ws.ID)
		}, nil, "has the workspace, which is deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixture.NewFolder(t), postgres.Limits{Workspaces: 1})
			id := w.archived("ann", "one", "x")
			w.cfg.Selection = arrivals.Selection{Workspace: "ann/one"}
			c.prepare(w, id)
			before := w.state()
			for _, options := range [][]func(*config){append(c.options, dryRun), append(c.options, remove)} {
				r := w.run(options...)
				if res := of(t, r, id); res.Result != arrivals.Left || !strings.Contains(res.Reason, c.reason) || r.Left == 0 {
					t.Errorf("%+v", res)
				}
			}
			if w.state() != before {
				t.Errorf("something has changed:\n%s\n\n%s", before, w.state())
			}
		})
	}
}

// What appears only while the archive is copied is refused by the transaction that records
// the workspace, and the copy is removed.
func TestMoveRefusedAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	w.AddUser("ann")
	id := w.archived("ann", "one", "x")
	r := w.run(join, remove, func(c *config) {
		c.Step = func(step string) {
			if step == "verified" {
				ann, err := w.DB.UserByName(t.Context(), "ann")
				check(t, err)
				w.AddWorkspace(workspace.Caller{UserID: ann.ID}, "one")
			}
		}
	})
	if res := of(t, r, id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "already") || w.deletedThere(id) || len(w.objects(w.bucket)) != 0 {
		t.Errorf("%+v, %v", res, w.objects(w.bucket))
	}
}

func TestMoveJoinsUsers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	ann := w.AddUser("Ann")
	id := w.archived("ann", "one", "x")
	w.cfg.Selection = arrivals.Selection{User: "ANN"}
	r := w.run(join)
	if len(r.Users) != 1 || r.Users[0].Result != arrivals.Joined || r.Users[0].ID != ann.UserID {
		t.Errorf("%+v", r.Users)
	}
	if ws, _ := w.here(id); ws.OwnerID != ann.UserID {
		t.Errorf("%+v", ws)
	}
	// A later run knows the user without the option.
	second := w.archived("ann", "two", "x")
	if r = w.run(); of(t, r, second).Result != arrivals.Added || r.Users[0].Result != arrivals.Already {
		t.Errorf("%+v", r)
	}
}

// TestMoveLinksIdentities: a user whom the move adds logs in with the same account of the identity provider.
// An account of a user who is here already is linked to nobody else, and an existing user gets none.
func TestMoveLinksIdentities(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	const issuer = "https://login.example.com"
	link := func(of *fixture.Database, user, subject string) {
		t.Helper()
		of.Change(`INSERT INTO user_identities (id, user_id, issuer, subject, username) SELECT gen_random_uuid(), id, $2, $3, 'at the provider' FROM users WHERE username = $1`, user, issuer, subject)
	}
	w.archived("ann", "one", "x") // ann comes with a workspace, bob without
	w.users["carl"] = w.source.AddAccount("carl", "correct horse", false)
	w.AddUser("carl")
	w.AddUser("dora")
	for user, subject := range map[string]string{"ann": "s-ann", "bob": "s-dora", "carl": "s-carl"} {
		link(w.source.Database, user, subject)
	}
	link(w.Database, "dora", "s-dora") // an account here that the source gives to bob
	r := w.run(join)
	notes := map[string]string{}
	for _, u := range r.Users {
		notes[u.Username] = u.Result + ": " + strings.Join(u.Notes, "; ")
	}
	for user, want := range map[string]string{"ann": "added: logs in with " + issuer, "bob": "belongs to another user here", "carl": "joined: keeps the password, the identities"} {
		if !strings.Contains(notes[user], want) {
			t.Errorf("%s: %q lacks %q", user, notes[user], want)
		}
	}
	n := byte(0)
	signIn := func(subject, name string) (string, error) {
		n++
		u, err := w.DB.SignIn(t.Context(), postgres.SignIn{Issuer: issuer, Subject: subject, NewUser: name, Session: bytes.Repeat([]byte{n}, 32), Expires: time.Now().Add(time.Hour)})
		return u.Username, err
	}
	// The source may say that any account at the provider is ann's.
	if got, err := signIn("s-ann", "root"); workspace.CodeOf(err) != workspace.CodeNameTaken {
		t.Errorf("an account with the name root logs in as %q, %v", got, err)
	}
	for subject, want := range map[string]string{"s-ann": "ann", "s-dora": "dora"} {
		if got, err := signIn(subject, want); got != want || err != nil {
			t.Errorf("%s logs in as %q, %v", subject, got, err)
		}
	}
	// carl existed here: the source's account of that name opens nothing.
	if got, err := signIn("s-carl", "carl"); workspace.CodeOf(err) != workspace.CodeNameTaken {
		t.Errorf("s-carl logs in as %q, %v", got, err)
	}
	if n := fixture.Query[int](w.source, `SELECT count(*) FROM audit_log WHERE action = 'user.move_read' AND username = 'root'`); n != 3 { // root, ann and bob
		t.Errorf("%d reads in the audit log of the source", n)
	}
}

// TestMoveFromEarlierVersion: a source without the call for identities moves users without them.
func TestMoveFromEarlierVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	w.via.absent = "/admin/move/users/"
	r := w.run()
	if r.Left != 0 || !strings.Contains(strings.Join(r.Users[0].Notes, "; "), "of a version") {
		t.Errorf("%+v", r)
	}
	w.expectMoved(id)
}

// A download that breaks off again and again is continued, not begun again.
func TestMoveContinuesDownload(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", noise(1_000_000))
	w.via.after = 150_000
	if r := w.run(); r.Left != 0 {
		t.Fatalf("%+v", r)
	}
	if w.via.ranges < 6 {
		t.Errorf("continued only %d times", w.via.ranges)
	}
	w.expectMoved(id)
}

func TestMoveRepeatsFailedReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	w.via.failed = map[string]bool{}
	if r := w.run(remove); r.Left != 0 || len(w.via.failed) < 6 {
		t.Errorf("%+v, %v", r, w.via.failed)
	}
	w.expectMoved(id)
}

// A source that never answers ends the run.
func TestMoveEndsWithSilentSource(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/admin/move", "/users", "/record"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
			w.archived("ann", "one", "x")
			w.via.silent = path
			_, err := w.try(t.Context(), func(c *config) { c.Limit, c.Patience = 100*time.Millisecond, 250*time.Millisecond })
			if err == nil || !strings.Contains(err.Error(), "has not answered within 100ms") {
				t.Errorf("%v", err)
			}
			w.expectNothing()
		})
	}
}

// A workspace that the source does not archive is left, and the others move.
func TestMoveLeavesStalledWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	stalled, other := w.archived("ann", "stalled", "x"), w.archived("ann", "other", "x")
	w.source.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, stalled)
	r := w.run(func(c *config) { c.Stalled = 100 * time.Millisecond })
	if res := of(t, r, stalled); res.Result != arrivals.Left || !strings.Contains(res.Reason, "no progress at the source for 100ms") || of(t, r, other).Result != arrivals.Added {
		t.Errorf("%+v", r)
	}
	w.expectMoved(other)
}

// An archive with another digest than the source recorded is not moved, whether it is as long or
// shorter.
func TestMoveRefusesDamagedArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id, short := w.archived("ann", "one", noise(10_000)), w.archived("ann", "two", noise(10_000))
	for i, of := range []workspace.ID{id, short} {
		key := fixture.Query[string](w.source, `SELECT archive_key FROM workspaces WHERE id = $1`, of)
		content := w.content(w.sourceBucket, key)
		content[5000] ^= 1
		fixture.PutObject(t, w.sourceBucket.Store, key, content[:len(content)-i])
	}
	r := w.run(remove)
	for _, one := range []workspace.ID{id, short} {
		if res := of(t, r, one); res.Result != arrivals.Left || w.deletedThere(one) {
			t.Errorf("%+v", res)
		}
	}
	w.expectNothing()
}

// A target that has lost the archive since does not have it removed from the source.
func TestMoveKeepsSourceOfLostArchive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	if r := w.run(); r.Left != 0 {
		t.Fatalf("%+v", r)
	}
	ws, _ := w.here(id)
	content := w.content(w.bucket, ws.ArchiveKey)
	check(t, w.bucket.Store.Delete(t.Context(), ws.ArchiveKey))
	if res := of(t, w.run(remove), id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "missing or damaged") || w.deletedThere(id) {
		t.Errorf("%+v", res)
	}
	w.Change(`UPDATE workspaces SET phase = 'ERROR', error_reason = 'DataLost' WHERE id = $1`, id)
	if res := of(t, w.run(remove), id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "DataLost") || w.deletedThere(id) {
		t.Errorf("%+v", res)
	}
	w.Change(`UPDATE workspaces SET phase = 'ARCHIVED', error_reason = NULL WHERE id = $1`, id)
	fixture.PutObject(t, w.bucket.Store, ws.ArchiveKey, content)
	if res := of(t, w.run(remove), id); res.Result != arrivals.Already || !w.deletedThere(id) {
		t.Errorf("%+v", res)
	}
}

// Until a restore at the target has ended, its archive is the only complete copy there.
func TestMoveKeepsSourceUntilHomeIsLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	if r := w.run(); r.Left != 0 {
		t.Fatalf("%+v", r)
	}
	ws, _ := w.here(id)
	check(t, w.bucket.Store.Delete(t.Context(), ws.ArchiveKey))
	home := func(state workspace.HomeState, reason string) {
		t.Helper()
		status := "False"
		if reason == workspace.ReasonVolumeReady {
			status = "True"
		}
		w.Change(`UPDATE workspaces SET home_ctx = jsonb_build_object('state', $2::text, 'claim', 'c'),
			conditions = jsonb_build_object('storage.volume_ready', jsonb_build_object('status', $3::text, 'reason', $4::text, 'message', '', 'last_transition_time', now())) WHERE id = $1`,
			id, state, status, reason)
	}
	for state, reason := range map[workspace.HomeState]string{
		workspace.HomeFilling:    workspace.ReasonFilling,
		workspace.HomeDiscarding: workspace.ReasonDiscarding,
		workspace.HomeArchived:   workspace.ReasonRemoving,
		workspace.HomeLive:       workspace.ReasonNoVolume,
	} {
		home(state, reason)
		if res := of(t, w.run(remove), id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "missing or damaged") || w.deletedThere(id) {
			t.Errorf("%s: %+v", state, res)
		}
	}
	home(workspace.HomeLive, workspace.ReasonVolumeReady)
	if res := of(t, w.run(remove), id); res.Result != arrivals.Already || !w.deletedThere(id) {
		t.Errorf("live: %+v", res)
	}
}

// A workspace moves back once the first installation has removed it completely, and has the
// same digest there.
func TestMoveBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", noise(100_000))
	if r := w.run(remove); r.Left != 0 {
		t.Fatalf("%+v", r)
	}
	moved, _ := w.here(id)
	w.Change(`UPDATE workspaces SET phase = 'ARCHIVED'`) // as the controller observes
	_, err := w.DB.AllowMoves(t.Context(), time.Hour)
	check(t, err)
	log := slog.New(slog.NewTextHandler(w.log, nil))
	other := serve(t, w.Database, w.bucket, log)
	back := w.cfg
	back.Client = w.client(other, other.AddAccount("mover", "correct horse", true))
	back.DB, back.Bucket, back.JoinUsers, back.Remove = w.source.DB, w.sourceBucket, true, true
	back.Selection = arrivals.Selection{Workspace: "ann/one"}

	r, err := back.run(t.Context())
	check(t, err)
	if res := of(t, r, id); res.Result != arrivals.Left || !strings.Contains(res.Reason, "removed completely") {
		t.Errorf("%+v", res)
	}
	w.source.Change(`UPDATE workspaces SET phase = 'DELETED', deleted_at = now() - interval '1 day'`)
	deleted := fixture.Query[time.Time](w.source, `SELECT deleted_at FROM workspaces`)
	r, err = back.run(t.Context())
	check(t, err)
	if res := of(t, r, id); res.Result != arrivals.Added || res.Source != arrivals.Removed {
		t.Errorf("%+v", res)
	}
	ws, err := w.source.DB.Workspace(t.Context(), w.users["ann"], id)
	check(t, err)
	if ws.ArchiveDigest != moved.ArchiveDigest || ws.ArchiveKey == moved.ArchiveKey || ws.DeletedAt != nil || ws.Env["TOKEN"] != secret {
		t.Errorf("%+v", ws)
	}
	if string(w.content(w.sourceBucket, ws.ArchiveKey)) != string(w.content(w.bucket, moved.ArchiveKey)) {
		t.Error("the archives differ")
	}
	// A restored database that has the deletion recognizes the archive as newer.
	meta, err := w.sourceBucket.Meta(t.Context(), ws.ArchiveKey)
	check(t, err)
	if !meta.CreatedAt.After(deleted) {
		t.Errorf("created at %s, and deleted here at %s", meta.CreatedAt, deleted)
	}
}

// A failure of the source ends the run, and the report has what was not tried.
func TestMoveEndsWithSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	one, two := w.archived("ann", "one", "x"), w.archived("ann", "two", "x")
	r, err := w.try(t.Context(), func(c *config) {
		c.Step = func(step string) {
			if step == "verified" {
				_, err := w.source.DB.AllowMoves(t.Context(), 0)
				check(t, err)
			}
		}
	})
	if err == nil || !strings.Contains(err.Error(), "allow-moves") || of(t, r, one).Result != arrivals.Left || !strings.Contains(of(t, r, two).Reason, "not tried") {
		t.Errorf("%v, %+v", err, r)
	}
	if _, err = w.try(t.Context()); err == nil || !strings.Contains(err.Error(), "run codehub allow-moves on its machine") {
		t.Errorf("%v", err)
	}
	_, err = w.source.DB.AllowMoves(t.Context(), time.Hour)
	check(t, err)
	if r := w.run(); r.Left != 0 {
		t.Errorf("%+v", r)
	}
	w.expectMoved(one, two)
}

// A restored database of either side may have older homes than its bucket.
func TestMoveRefusesHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	id := w.archived("ann", "one", "x")
	for _, d := range []*fixture.Database{w.Database, w.source.Database} {
		d.Change(`UPDATE gc_state SET hold = 'restored', hold_since = now()`)
		before := w.state()
		for _, f := range []func(*config){dryRun, remove} {
			if _, err := w.try(t.Context(), f); err == nil || !strings.Contains(err.Error(), "codehub reconcile-restore") {
				t.Errorf("%v", err)
			}
		}
		if w.state() != before {
			t.Error("a move on hold has changed something")
		}
		d.Change(`UPDATE gc_state SET hold = NULL, hold_since = NULL`)
	}
	if r := w.run(remove); of(t, r, id).Result != arrivals.Added || !w.deletedThere(id) {
		t.Errorf("%+v", r)
	}
}

func TestMoveNeedsAdministrators(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fixture.NewFolder(t), postgres.Limits{})
	w.archived("ann", "one", "x")
	if _, err := w.try(t.Context(), func(c *config) { c.Client = w.client(w.source, w.users["ann"]) }); err == nil || !strings.Contains(err.Error(), "administrators") {
		t.Errorf("%v", err)
	}
	w.Change(`UPDATE users SET admin = false`)
	if _, err := w.try(t.Context()); err == nil || !strings.Contains(err.Error(), "no administrator") {
		t.Errorf("%v", err)
	}
	w.expectNothing()
}
