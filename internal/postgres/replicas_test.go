package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func welcome([]postgres.Replica) error { return nil }

func TestReplicas(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	a := postgres.Replica{ID: uuid.NewString(), Hostname: "a\x00\xff", Version: "1", Settings: map[string]string{"X": "1"}}
	b := postgres.Replica{ID: uuid.NewString(), Hostname: "b", Health: json.RawMessage(`{"docker": {"state": "closed"}}`)}
	for _, r := range []postgres.Replica{a, b} {
		if err := e.JoinReplica(ctx, r, welcome); err != nil {
			t.Fatal(err)
		}
	}
	list := must(e.Replicas(ctx))(t)
	if len(list) != 2 || list[0].ID != a.ID || list[0].Hostname != "a\uFFFD" || list[0].Settings["X"] != "1" || !list[0].Alive || list[0].Leads ||
		list[0].FlushedAt != nil || list[0].StartedAt.Location() != time.UTC || string(list[1].Health) != `{"docker": {"state": "closed"}}` {
		t.Fatalf("%+v", list)
	}
	a.Health = json.RawMessage(`{"bucket": {"failures": 3}}`)
	e.exec(`UPDATE replicas SET seen_at = seen_at - interval '61 seconds', flushed_at = now(), flush_epoch = 'x' WHERE id = $1`, a.ID)
	if list = must(e.Replicas(ctx))(t); list[0].Alive || list[0].Age < time.Minute || !list[1].Alive {
		t.Errorf("%+v", list)
	}
	if err := e.BeatReplica(ctx, a); err != nil {
		t.Fatal(err)
	}
	if list = must(e.Replicas(ctx))(t); !list[0].Alive || string(list[0].Health) != `{"bucket": {"failures": 3}}` || list[0].FlushedAt == nil {
		t.Errorf("%+v", list)
	}
	if err := e.LeaveReplica(ctx, b.ID); err != nil {
		t.Fatal(err)
	}
	if list = must(e.Replicas(ctx))(t); len(list) != 1 {
		t.Errorf("%+v", list)
	}
}

// The row of a server without heartbeats is removed when another one joins, and added again if
// the server continues.
func TestSilentReplicaIsForgotten(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	old := postgres.Replica{ID: uuid.NewString(), Settings: map[string]string{"X": "1"}}
	if err := e.JoinReplica(ctx, old, welcome); err != nil {
		t.Fatal(err)
	}
	e.exec(`UPDATE replicas SET seen_at = now() - interval '25 hours'`)
	young := postgres.Replica{ID: uuid.NewString()}
	err := e.JoinReplica(ctx, young, func(others []postgres.Replica) error {
		if len(others) != 0 {
			t.Errorf("%+v", others)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.BeatReplica(ctx, old); err != nil {
		t.Fatal(err)
	}
	if list := must(e.Replicas(ctx))(t); len(list) != 2 || list[1].ID != old.ID || list[1].Settings["X"] != "1" {
		t.Errorf("%+v", list)
	}
}

// Of incompatible servers that join at the same time, exactly one is accepted.
func TestReplicasJoinOneByOne(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	unwanted := errors.New("incompatible")
	var g errgroup.Group
	refused := make(chan struct{}, 20)
	for range 8 {
		g.Go(func() error {
			err := e.JoinReplica(context.Background(), postgres.Replica{ID: uuid.NewString()}, func(others []postgres.Replica) error {
				if len(others) > 0 {
					return unwanted
				}
				return nil
			})
			if errors.Is(err, unwanted) {
				refused <- struct{}{}
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(7, len(refused)); d != "" {
		t.Error(d)
	}
	if n := query[int](e, `SELECT count(*) FROM replicas`); n != 1 {
		t.Errorf("%d joined", n)
	}
}

func TestHomesIn(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	u := e.user("ann")
	if must(e.HasHomesIn(t.Context(), workspace.StorageLocalDir))(t) {
		t.Error("homes in an unused storage")
	}
	w := e.workspace(u, state{"storage_backend": workspace.StorageLocalDir})
	if !must(e.HasHomesIn(t.Context(), workspace.StorageLocalDir))(t) {
		t.Error("a home in a folder is not found")
	}
	e.set(w.ID, state{"phase": "DELETED", "deleted_at": time.Now()})
	if must(e.HasHomesIn(t.Context(), workspace.StorageLocalDir))(t) {
		t.Error("a removed home is found")
	}
}
