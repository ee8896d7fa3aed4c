package postgres_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
)

// notificationLog collects the database's notifications. A notification of its own, which comes after all
// earlier ones, ends a collection.
type notificationLog struct {
	e    *env
	conn *pgx.Conn
	n    int
}

func (e *env) hear() *notificationLog {
	e.Helper()
	c := e.conn()
	for _, channel := range []string{postgres.ChannelSSE, postgres.ChannelWake, postgres.ChannelDeleted, postgres.ChannelAuth, "fence"} {
		if _, err := c.Exec(e.Context(), `LISTEN `+channel); err != nil {
			e.Fatal(err)
		}
	}
	return &notificationLog{e: e, conn: c}
}

// since returns the notifications since the last call.
func (h *notificationLog) since() (list []postgres.Notification) {
	h.e.Helper()
	h.n++
	fence := fmt.Sprint(h.n)
	h.e.exec(`SELECT pg_notify('fence', $1)`, fence)
	for {
		n, err := h.conn.WaitForNotification(h.e.Context())
		if err != nil {
			h.e.Fatal(err)
		}
		if n.Channel == "fence" {
			if n.Payload == fence {
				return list
			}
			continue
		}
		list = append(list, postgres.Notification{Channel: n.Channel, Payload: n.Payload})
	}
}

// channels returns the channels of the notifications since the last call, sorted.
func (h *notificationLog) channels() string {
	h.e.Helper()
	var out []string
	for _, n := range h.since() {
		out = append(out, n.Channel)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// Which change of a workspace is announced on which channels.
func TestWorkspaceNotifications(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	h := e.hear()
	ann := e.user("ann")
	h.since()
	w := e.workspace(ann, nil)
	want := fmt.Sprintf(`{"id" : "%s", "owner" : "%s"}`, w.ID, ann.UserID)
	if d := cmp.Diff([]postgres.Notification{{Channel: "ws_sse", Payload: want}, {Channel: "ws_wake", Payload: want}}, h.since()); d != "" {
		t.Errorf("a new workspace: %s", d)
	}
	at := soon(0)
	for _, c := range []struct {
		name  string
		state state
		want  string
	}{
		{"phase", state{"phase": "STANDBY"}, "ws_sse"},
		{"operation", state{"operation": "STARTING"}, "ws_sse"},
		{"progress", state{"progress": `{"step": "pull", "done": 1}`}, "ws_sse"},
		{"progress, further", state{"progress": `{"step": "pull", "done": 2}`}, "ws_sse"},
		{"progress, the same", state{"progress": `{"done": 2, "step": "pull"}`}, ""},
		{"next_desired_state", state{"next_desired_state": "STANDBY"}, "ws_sse ws_wake"},
		{"next_desired_state cleared", state{"next_desired_state": nil}, "ws_sse"},
		{"operation ended", state{"operation": "NONE"}, "ws_sse"},
		{"error_reason", state{"error_reason": "Timeout"}, "ws_sse"},
		{"error_message", state{"error_message": "m"}, "ws_sse"},
		{"desired_state", state{"desired_state": "RUNNING"}, "ws_sse ws_wake"},
		{"archive_key", state{"archive_key": "k"}, "ws_sse"},
		{"container's reason", state{"conditions": container}, "ws_sse"},
		{"container, the same reason", state{"conditions": strings.Replace(container, `"Ready"}`, `"Ready", "message": "m"}`, 1)}, ""},
		{"no container", state{"conditions": noContainer}, "ws_sse"},
		{"volume missing", state{"conditions": nothing}, ""},
		{"stop_reason", state{"stop_reason": "idle"}, "ws_sse"},
		{"name", state{"name": "other"}, "ws_sse"},
		{"description", state{"description": "other"}, "ws_sse"},
		{"memo", state{"memo": "other"}, "ws_sse"},
		{"standby_ttl_seconds", state{"standby_ttl_seconds": 5}, "ws_sse"},
		{"archive_ttl_seconds", state{"archive_ttl_seconds": 5}, "ws_sse"},
		{"keep_awake_until", state{"keep_awake_until": at}, "ws_sse"},
		{"recover_requested_at", state{"recover_requested_at": at, "recover_action": "afresh"}, "ws_wake"},
		{"recover_requested_at cleared", state{"recover_requested_at": nil, "recover_action": nil}, ""},
		{"cancel_requested_at", state{"cancel_requested_at": at}, "ws_wake"},
		{"cancel_requested_at cleared", state{"cancel_requested_at": nil}, ""},
		{"force_stop_requested_at", state{"force_stop_requested_at": at}, "ws_wake"},
		{"force_stop_requested_at cleared", state{"force_stop_requested_at": nil}, ""},
		{"last_access_at", state{"last_access_at": at, "last_access_kind": "open"}, "ws_sse"},
		{"last_access_at, a moment later", state{"last_access_at": at.Add(19 * time.Second)}, ""},
		{"last_access_at, later", state{"last_access_at": at.Add(40 * time.Second), "last_access_kind": "typing"}, "ws_sse"},
		{"home_ctx", state{"home_ctx": `{"state": "live"}`}, ""},
		{"retry", state{"retry_at": at, "error_count": 1}, ""},
		{"deleted_at", state{"deleted_at": at}, "ws_deleted ws_sse ws_wake"},
		{"deleted_at moved", state{"deleted_at": at.Add(1e6)}, "ws_sse ws_wake"},
		{"deleted_at cleared", state{"deleted_at": nil}, "ws_sse ws_wake"},
		{"no change", state{"name": "other", "phase": "STANDBY", "desired_state": "RUNNING"}, ""},
	} {
		e.set(w.ID, c.state)
		if got := h.channels(); got != c.want {
			t.Errorf("%s: notified on %q, want %q", c.name, got, c.want)
		}
	}
	bob := e.user("bob")
	h.since()
	e.set(w.ID, state{"owner_user_id": bob.UserID})
	both := []postgres.Notification{
		{Channel: "ws_sse", Payload: want}, {Channel: "ws_sse", Payload: strings.Replace(want, ann.UserID, bob.UserID, 1)},
	}
	if d := cmp.Diff(both, h.since()); d != "" {
		t.Errorf("another owner: %s", d)
	}
}

// Every loss of access is announced.
func TestAuthNotifications(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	h := e.hear()
	ann := e.user("ann")
	session := func(name string, expires time.Time) {
		if err := e.CreateSession(ctx, hash(name), ann.UserID, "", expires, postgres.Client{}); err != nil {
			t.Fatal(err)
		}
	}
	notified := func(names ...string) (out []string) {
		for _, n := range names {
			if n != "" {
				n = hex.EncodeToString(hash(n))
			}
			out = append(out, ann.UserID+" "+n)
		}
		slices.Sort(out)
		return out
	}
	expect := func(what string, want []string) {
		t.Helper()
		var got []string
		for _, n := range h.since() {
			var p struct{ User, Session string }
			if err := json.Unmarshal([]byte(n.Payload), &p); err != nil || n.Channel != "auth_changed" {
				t.Errorf("%s: %v %v", what, n, err)
			}
			got = append(got, p.User+" "+p.Session)
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	session("a", soon(time.Hour))
	session("b", soon(time.Hour))
	session("over", soon(-time.Hour))
	token := must(e.CreateToken(ctx, ann, postgres.Token{Name: "t", Hash: hash("t")}))(t)
	must(e.CreateToken(ctx, ann, postgres.Token{Name: "u", Hash: hash("u")}))(t)
	if err := e.RecordLoginFailure(ctx, ann.UserID, func(int, time.Time) *time.Time { return ptr(soon(time.Hour)) }); err != nil {
		t.Fatal(err)
	}
	if err := e.ResetLoginFailures(ctx, ann.UserID); err != nil {
		t.Fatal(err)
	}
	if err := e.TouchToken(ctx, token.ID, soon(0)); err != nil {
		t.Fatal(err)
	}
	expect("logins", nil)

	if err := e.DeleteSession(ctx, hash("a"), netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	expect("logout", notified("a"))
	must(e.DeleteExpiredSessions(ctx))(t)
	expect("expiry", notified("over"))
	if err := e.DeleteToken(ctx, ann, token.ID); err != nil {
		t.Fatal(err)
	}
	expect("token", notified("t"))
	if _, err := e.SetPassword(ctx, ann, must(e.User(ctx, ann.UserID))(t).PasswordHash, "new", nil); err != nil {
		t.Fatal(err)
	}
	expect("password", notified("", "b", "u"))
	for _, set := range []string{`disabled = true`, `admin = true`, `max_running = 1`, `username = 'Ann'`} {
		e.exec(`UPDATE users SET ` + set)
		expect(set, notified(""))
	}
	e.exec(`DELETE FROM users`)
	expect("removal", notified(""))
}
