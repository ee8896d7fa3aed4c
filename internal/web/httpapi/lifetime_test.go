package httpapi

import (
	"fmt"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/base/setting"
	"codehub/internal/running/service"
	"codehub/internal/workspace"
)

// The API has when a workspace stops, why it stopped, and the request to stay.
func TestLifetime(t *testing.T) {
	t.Parallel()
	var seen time.Time // by this server
	e := newEnv(t, func(c *Config) {
		c.Idle = service.Idle{StandbyTTL: 600, ArchiveTTL: 3600}
		c.LastUse = func(workspace.ID) (time.Time, string, bool) { return seen, "typing", !seen.IsZero() }
	})
	w := e.workspace(e.ann, "target")
	path, me := "/workspaces/"+string(w.ID), as(e.ann)
	get := func() api.Workspace {
		t.Helper()
		return read[api.Workspace](t, e.want(200, "", "GET", path, "", me))
	}
	is := func(what string, got *time.Time, want time.Time) {
		t.Helper()
		if got == nil || !got.Equal(want) {
			t.Errorf("%s at %v, want %v", what, got, want)
		}
	}
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING', phase_changed_at = now() - interval '5 min' WHERE id = $1`, w.ID)
	got := get()
	is("stops", got.StopsAt, got.PhaseChangedAt.Add(10*time.Minute))

	// Activity that this server saw counts at once, unless the database has a later one.
	seen = got.PhaseChangedAt.Add(2 * time.Minute)
	got = get()
	is("stops", got.StopsAt, seen.Add(10*time.Minute))
	is("used", got.LastAccessAt, seen)
	if *got.LastAccessKind != "typing" {
		t.Error(*got.LastAccessKind)
	}
	e.want(404, "not_found", "POST", "/workspaces/00000000-0000-7000-8000-000000000000/stay", "", me)
	e.want(403, "forbidden", "POST", path+"/stay", "", as(e.eve))
	got = read[api.Workspace](t, e.want(200, "", "POST", path+"/stay", "", me))
	if !got.LastAccessAt.After(seen) || *got.LastAccessKind != "stay" {
		t.Errorf("used %s as %s", got.LastAccessAt, *got.LastAccessKind)
	}
	is("stops", got.StopsAt, got.LastAccessAt.Add(10*time.Minute))

	until := time.Now().Add(23 * time.Hour).UTC().Truncate(time.Second)
	got = read[api.Workspace](t, e.want(200, "", "PATCH", path, fmt.Sprintf(`{"keep_awake_until":%q}`, until.Format(time.RFC3339)), me))
	is("stops", got.StopsAt, until)
	got = read[api.Workspace](t, e.want(200, "", "PATCH", path, `{"keep_awake_until":null,"standby_ttl_seconds":0}`, me))
	if got.StopsAt != nil {
		t.Errorf("never stops, at %s", got.StopsAt)
	}

	e.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'STANDBY', desired_cause = 'idle', stop_reason = 'idle', phase_changed_at = now() WHERE id = $1`, w.ID)
	got = get()
	is("archived", got.StopsAt, got.PhaseChangedAt.Add(time.Hour))
	if *got.DesiredCause != "idle" || *got.StopReason != "idle" {
		t.Errorf("%v %v", got.DesiredCause, got.StopReason)
	}
	e.want(409, "not_running", "POST", path+"/stay", "", me)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	me := as(e.ann)
	w := e.workspace(e.ann, "target")
	path := "/workspaces/" + string(w.ID) + "/restart"
	e.want(409, "not_running", "POST", path, "", me)
	e.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING' WHERE id = $1`, w.ID)
	e.want(403, "forbidden", "POST", path, "", as(e.eve))
	got := read[api.Workspace](t, e.want(202, "", "POST", path, "", me))
	if got.DesiredState != "STANDBY" || got.NextDesiredState == nil || *got.NextDesiredState != "RUNNING" || got.State != "stopping" {
		t.Errorf("restarting: %+v", got)
	}
	e.Change(`UPDATE workspaces SET operation = 'STOPPING', op_id = gen_random_uuid(), op_started_at = now() WHERE id = $1`, w.ID)
	e.want(409, "operation_in_progress", "POST", path, "", me)
}

// A workspace is kept awake for at most the server's maximum and the tolerance for clocks.
func TestKeepAwakeBound(t *testing.T) {
	t.Parallel()
	s := &server{cfg: Config{Settings: service.Settings{Idle: service.Idle{KeepAwakeMax: 90 * time.Minute}}}}
	now := time.Now()
	for after, ok := range map[time.Duration]bool{
		time.Second: true, 90 * time.Minute: true, 91 * time.Minute: true, 92 * time.Minute: false, 0: false, -time.Hour: false, 1000 * time.Hour: false,
	} {
		if err := s.checkKeepAwake(api.Value(now.Add(after)), now); (err == nil) != ok {
			t.Errorf("%s: %v", after, err)
		}
	}
	for d, want := range map[time.Duration]string{24 * time.Hour: "24h", 90 * time.Minute: "1h30m", 90 * time.Second: "1m30s", 10 * time.Minute: "10m", 10 * time.Hour: "10h"} {
		if got := setting.Duration(d); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
