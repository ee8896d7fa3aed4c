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

// ttlFlag is the value of a TTL flag: a length of time, never, or default.
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

// ttlFlags set the idle timeouts of one workspace.
type ttlFlags struct {
	StandbyTTL ttlFlag `name:"standby-ttl" placeholder:"TIME" help:"Idle timeout until it stops: 30m, never, or default (the server's)."`
	ArchiveTTL ttlFlag `name:"archive-ttl" placeholder:"TIME" help:"Idle timeout until a stopped workspace is archived: 2d, never, or default (the server's)."`
}

// backupIntervalFlag sets how often the home of one workspace is backed up.
type backupIntervalFlag struct {
	BackupInterval ttlFlag `placeholder:"TIME" help:"Time between two backups of the home: 1h, never, or default (the server's)."`
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
	return onWorkspace(s).run(ctx, k, false, func(c *client.Client, id string) (any, string, error) { return withLifetime(c.Do(ctx, id, "stay")) })
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

// awakeUntil parses a time in the zone of now; nil for off.
func awakeUntil(when []string, now time.Time) (*time.Time, error) {
	text := strings.Join(when, " ")
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

// withLifetime is outcome with the next effect of the idle timeouts.
func withLifetime(w api.Workspace, err error) (any, string, error) {
	v, text, err := outcome(w, err)
	switch name, when := lifetime(w, time.Now()); {
	case when == never:
		text += ", " + words("lifetime.", "never")
	case name != "":
		text += ", " + strings.ToLower(name) + " " + when
	}
	return v, text, err
}

// never is when a running workspace without an idle timeout stops.
const never = "never"

// lifetime returns the next effect of the idle timeouts, and when it occurs; two empty texts if
// there is none.
func lifetime(w api.Workspace, now time.Time) (name, when string) {
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
		return name, never
	case at == nil:
		return "", ""
	case !at.After(now):
		return name, "within a minute"
	default:
		when = fmt.Sprintf("in %s (%s)", ahead(at.Sub(now)), terminal.Time(*at))
		if keptAwake := w.KeepAwakeUntil != nil && w.KeepAwakeUntil.Equal(*at); !keptAwake && w.Phase == "RUNNING" {
			when += " without activity"
		}
		return name, when
	}
}

// stops are the words for the API's stop reasons, after "Stopped:".
var stops = map[string]string{
	"idle": "after inactivity", "requested": "on request", "forced": "forced", "exited": "container exited",
}

// inWords returns the text for s, or s if there is none.
func inWords(texts map[string]string, s string) string {
	if text, ok := texts[s]; ok {
		return text
	}
	return s
}

// lastActivity formats the time and kind of the last activity.
func lastActivity(w api.Workspace, now time.Time) string {
	if w.LastAccessAt == nil {
		return ""
	}
	text := age(now.Sub(*w.LastAccessAt)) + " ago"
	if w.LastAccessKind != nil {
		text += ", " + words("activity.", *w.LastAccessKind)
	}
	return text
}

// desired formats the desired state, with its cause unless a user requested it.
func desired(w api.Workspace) string {
	text := inWords(desires, w.DesiredState)
	if w.DesiredCause == nil {
		return text
	}
	return text + " (" + inWords(map[string]string{"idle": "after inactivity", "unused": "after inactivity"}, *w.DesiredCause) + ")"
}

// customTimeouts formats the idle timeouts that are set for the workspace itself.
func customTimeouts(w api.Workspace) string {
	var text []string
	for _, t := range []struct {
		name string
		v    *int
	}{{"stop", w.StandbyTTLSeconds}, {"archive", w.ArchiveTTLSeconds}} {
		switch {
		case t.v == nil:
		case *t.v == 0:
			text = append(text, t.name+" never")
		default:
			text = append(text, t.name+" after "+length(time.Duration(*t.v)*time.Second))
		}
	}
	return strings.Join(text, ", ")
}

// customBackups formats the settings of backups that are set for the workspace itself.
func customBackups(w api.Workspace) string {
	var text []string
	if v := w.BackupIntervalSeconds; v != nil && *v == 0 {
		text = append(text, "none by schedule")
	} else if v != nil {
		text = append(text, "every "+length(time.Duration(*v)*time.Second))
	}
	if w.BackupKeep != nil {
		text = append(text, "kept "+*w.BackupKeep)
	}
	return strings.Join(text, ", ")
}

// length formats a length of time in the largest unit of which it is a multiple.
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
