package cli

import (
	"context"
	"encoding"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// ttlFlag is a TTL as people give it: a length of time, never, or default.
type ttlFlag struct {
	given   bool
	seconds *int // nil: the server's default
}

var _ encoding.TextUnmarshaler = (*ttlFlag)(nil)

// UnmarshalText reads "30m", "2d", "never" or "default".
func (t *ttlFlag) UnmarshalText(b []byte) error {
	t.given, t.seconds = true, nil
	var s span
	switch text := string(b); text {
	case "default":
		return nil
	case "never":
	default:
		if err := s.UnmarshalText(b); err != nil || time.Duration(s)%time.Second != 0 {
			return fmt.Errorf("%q is not a length of time like 30m or 2d, nor never or default", text)
		}
	}
	n := int(time.Duration(s) / time.Second)
	t.seconds = &n
	return nil
}

// change is t as a change to a workspace.
func (t ttlFlag) change() api.Nullable[int] { return api.Nullable[int]{Set: t.given, Value: t.seconds} }

// ttlFlags are the TTLs of one workspace.
type ttlFlags struct {
	StandbyTTL ttlFlag `name:"standby-ttl" placeholder:"TIME" help:"Idle timeout until it stops: 30m, never, or default (the server's)."`
	ArchiveTTL ttlFlag `name:"archive-ttl" placeholder:"TIME" help:"Idle timeout until a stopped workspace is archived: 2d, never, or default (the server's)."`
}

type stayCmd struct {
	serverFlags
	terminal.Format
	Workspace string `arg:"" optional:"" help:"A workspace's name or id. Without it, inside a workspace: keep this one awake until Ctrl-C."`
}

func (s stayCmd) Run(ctx context.Context, k *kong.Context) error {
	if s.Workspace == "" {
		return stayInside(ctx, k)
	}
	return onWorkspace(s).run(ctx, k, false, func(c *client.Client, id string) (any, string, error) { return withLifetime(c.Stay(ctx, id)) })
}

type keepAwakeCmd struct {
	onWorkspace
	When []string `arg:"" help:"For how long (2h), until when (until 18:30, until 2026-12-24 18:30), or off."`
}

func (cmd keepAwakeCmd) Run(ctx context.Context, k *kong.Context) error {
	until, err := awakeUntil(cmd.When, time.Now())
	if err != nil {
		return err
	}
	in := api.UpdateWorkspace{KeepAwakeUntil: api.Nullable[time.Time]{Set: true, Value: until}}
	return cmd.run(ctx, k, false, func(c *client.Client, id string) (any, string, error) { return withLifetime(c.Update(ctx, id, in)) })
}

// awakeUntil reads when, by the clock of now; nil for off.
func awakeUntil(words []string, now time.Time) (*time.Time, error) {
	text := strings.Join(words, " ")
	if text == "off" {
		return nil, nil
	}
	at, isTime := strings.CutPrefix(text, "until ")
	if !isTime {
		var s span
		if err := s.UnmarshalText([]byte(text)); err != nil || s == 0 {
			return nil, fmt.Errorf("%q is neither a length of time like 2h, nor until 18:30, nor off", text)
		}
		return s.from(now), nil
	}
	if t, err := time.ParseInLocation("15:04", at, now.Location()); err == nil {
		y, m, d := now.Date()
		until := time.Date(y, m, d, t.Hour(), t.Minute(), 0, 0, now.Location())
		if !until.After(now) {
			until = time.Date(y, m, d+1, t.Hour(), t.Minute(), 0, 0, now.Location())
		}
		return &until, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02 15:04:05", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, at, now.Location()); err == nil {
			return &t, nil
		}
	}
	return nil, fmt.Errorf("%q is not a time like 18:30 or 2026-12-24 18:30", at)
}

// withLifetime prints a workspace after something was asked of it, and what
// its TTLs have in store.
func withLifetime(w api.Workspace, err error) (any, string, error) {
	v, said, err := outcome(w, err)
	if name, what := lifetime(w, time.Now()); name != "" {
		said += ", " + strings.ToLower(name) + " " + what
	}
	return v, said, err
}

// lifetime says what its TTLs have in store for a workspace; two empty texts
// if nothing is.
func lifetime(w api.Workspace, now time.Time) (name, what string) {
	idle := w.Operation == "NONE" && w.DeletedAt == nil && w.NextDesiredState == nil && w.Phase == w.DesiredState
	switch {
	case !idle, w.Phase != "RUNNING" && w.Phase != "STANDBY":
		return "", ""
	case w.Phase == "RUNNING":
		name = "Stops"
	default:
		name = "Archived"
	}
	switch at := w.StopsAt; {
	case at == nil && w.Phase == "RUNNING":
		return name, "never by itself"
	case at == nil:
		return "", ""
	case !at.After(now):
		return name, "within a minute"
	default:
		what = fmt.Sprintf("in %s (%s)", ahead(at.Sub(now)), terminal.Time(*at))
		if keptAwake := w.KeepAwakeUntil != nil && w.KeepAwakeUntil.Equal(*at); !keptAwake && w.Phase == "RUNNING" {
			what += " unless it is used"
		}
		return name, what
	}
}

// uses and stops are the words for the API's kinds of activity and stop reasons.
var (
	uses = map[string]string{
		"open": "workspace opened", "presence": "user present", "typing": "typing", "output": "terminal output",
		"client": "client connection", "stay": "idle timer reset", "busy": "command running", "work": "processes at work", "request": "API request",
	}
	stops = map[string]string{
		"idle": "after inactivity", "requested": "on request", "forced": "forced", "exited": "container exited",
	}
)

// inWords returns the text for s, or s if there is none.
func inWords(texts map[string]string, s string) string {
	if text, ok := texts[s]; ok {
		return text
	}
	return s
}

// lastUse formats the time and kind of the last activity.
func lastUse(w api.Workspace, now time.Time) string {
	if w.LastAccessAt == nil {
		return ""
	}
	said := age(now.Sub(*w.LastAccessAt)) + " ago"
	if w.LastAccessKind != nil {
		said += ", " + inWords(uses, *w.LastAccessKind)
	}
	return said
}

// wanted formats the desired state, with its cause unless a user requested it.
func wanted(w api.Workspace) string {
	said := inWords(desires, w.DesiredState)
	if w.DesiredCause == nil {
		return said
	}
	return said + " (" + inWords(map[string]string{"idle": "after inactivity", "unused": "after inactivity"}, *w.DesiredCause) + ")"
}

// ownTTLs formats the idle timeouts that are set for the workspace itself.
func ownTTLs(w api.Workspace) string {
	var said []string
	for _, t := range []struct {
		name string
		v    *int
	}{{"stop", w.StandbyTTLSeconds}, {"archive", w.ArchiveTTLSeconds}} {
		switch {
		case t.v == nil:
		case *t.v == 0:
			said = append(said, t.name+" never")
		default:
			said = append(said, t.name+" after "+length(time.Duration(*t.v)*time.Second))
		}
	}
	return strings.Join(said, ", ")
}

// length is a length of time in the largest unit that it is whole in.
func length(d time.Duration) string {
	for _, u := range []struct {
		d    time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d%u.d == 0 {
			return fmt.Sprintf("%d%s", d/u.d, u.name)
		}
	}
	return d.String()
}
