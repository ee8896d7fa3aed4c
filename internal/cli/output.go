package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"codehub/api"
	"codehub/internal/cli/terminal"
)

// desires are the words for desired states.
var desires = map[string]string{"RUNNING": "running", "STANDBY": "stopped", "ARCHIVED": "archived", "DELETED": "deleted"}

// state returns the state of a workspace in words. Older servers send only the phase.
func state(w api.Workspace) string {
	if w.State == "" {
		return strings.ToLower(w.Phase)
	}
	return lowered("state.", w.State)
}

func workspaceTable(list []api.Workspace, now time.Time) string {
	rows := [][]string{{"NAME", "STATE", "IMAGE", "AGE", "ID"}}
	for _, w := range list {
		rows = append(rows, []string{w.Name, state(w), w.ImageRef, age(now.Sub(w.CreatedAt)), w.ID})
	}
	return terminal.Table(rows)
}

// workspaceDetails describes a workspace; usage is nil if it does not run, and skipped how
// many entries of its home its archive does not have.
func workspaceDetails(w api.Workspace, usage *api.Usage, skipped int64, now time.Time) string {
	rows := [][]string{
		{"Name:", w.Name}, {"ID:", w.ID}, {"State:", state(w)}, {"Desired state:", desired(w)},
		{"URL:", w.URL}, {"Image:", image(w)}, {"Size:", size(w)}, {"Created:", terminal.Time(w.CreatedAt)},
	}
	add := func(name string, v *string) {
		if v != nil && *v != "" {
			rows = append(rows, []string{name, *v})
		}
	}
	put := func(name, value string) { add(name, &value) }
	at := func(name string, v *time.Time) {
		if v != nil {
			rows = append(rows, []string{name, terminal.Time(*v)})
		}
	}
	if w.NextDesiredState != nil {
		rows = append(rows, []string{"Queued:", inWords(desires, *w.NextDesiredState)})
	}
	if usage != nil && usage.Disk != nil {
		w.HomeBytes = usage.Disk
	}
	if space := home(w); space != "" && w.Phase != "ARCHIVED" {
		rows = append(rows, []string{"Home:", space})
	}
	add("Pending request:", w.PendingRequest)
	add("Description:", &w.Description)
	add("Memo:", &w.Memo)
	if env := environment(w); env != "" {
		add("Environment:", &env)
	}
	for _, r := range w.Repositories {
		put("Repository:", strings.TrimSpace(r.URL+" "+r.Branch))
	}
	add("Time zone:", w.TimeZone)
	if w.ErrorReason != nil {
		rows = append(rows, []string{"Error:", problem(*w.ErrorReason)})
	}
	put("", errorDetail(w))
	rows = append(rows, imageRows(w)...)
	rows = append(rows, templateRows(w)...)
	if w.Devcontainer != nil {
		put("Devcontainer:", w.Devcontainer.File)
	}
	rows = append(rows, lossAdvice(w)...)
	if w.State == "delete_failed" {
		rows = append(rows, []string{"What to do:", "Fix the cause, then run: codehub delete " + w.ID})
	}
	if c := w.Conditions["infra.container_ready"]; c.Message != "" {
		add("Container:", &c.Message)
	}
	put("Last activity:", lastActivity(w, now))
	if name, when := lifetime(w, now); name != "" {
		put(name+":", when)
	}
	if w.StopReason != nil {
		put("Stopped:", inWords(stops, *w.StopReason))
	}
	put("Idle timeouts:", customTimeouts(w))
	put("Backup settings:", customBackups(w))
	if w.ArchiveSize != nil {
		rows = append(rows, []string{"Archive:", terminal.Size(*w.ArchiveSize)})
	}
	put("Not archived:", skippedWords(skipped))
	if p := joined(progressParts(w.Progress)); p != "" {
		rows = append(rows, []string{"Progress:", p})
	}
	at("Kept awake until:", w.KeepAwakeUntil)
	if w.AwakeWhileWorking {
		rows = append(rows, []string{"Kept awake:", "while its processes are at work"})
	}
	rows = append(rows, usageRows(usage)...)
	at("Deleted:", w.DeletedAt)
	at("Permanently deleted:", w.PurgedAt)
	return terminal.Table(rows)
}

// lossAdvice returns what an owner can do about a lost home.
func lossAdvice(w api.Workspace) [][]string {
	if w.ErrorReason == nil || *w.ErrorReason != "DataLost" && *w.ErrorReason != "ArchiveCorrupted" {
		return nil
	}
	return [][]string{
		{"What to do:", "Put the missing data back, then run: codehub recover " + w.Name},
		{"", "Or use an earlier archive (list them with codehub archives): codehub recover " + w.Name + " --archive ID --confirm " + w.Name},
		{"", "Or start with an empty home: codehub recover " + w.Name + " --start-empty --confirm " + w.Name},
	}
}

func tokenTable(list []api.Token) string {
	rows := [][]string{{"NAME", "SCOPE", "EXPIRES", "LAST USED", "ID"}}
	for _, t := range list {
		scope := t.Scope
		if t.WorkspaceID != nil {
			scope += " of " + *t.WorkspaceID
		}
		rows = append(rows, []string{t.Name, scope, orNever(t.ExpiresAt), orNever(t.LastUsedAt), t.ID})
	}
	return terminal.Table(rows)
}

func orNever(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return terminal.Time(*t)
}

// ahead formats a remaining time, rounded to the minute below two days, so that a
// timer that was just set to 2h is not shown as 1h.
func ahead(d time.Duration) string {
	d = max(d, time.Second)
	if d >= time.Minute {
		d = d.Round(time.Minute)
	}
	if d < time.Hour || d >= 48*time.Hour || d%time.Hour == 0 {
		return age(d)
	}
	return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
}

func age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(max(d, 0).Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

// span is a length of time that can also be in days: 90d.
type span time.Duration

// UnmarshalText reads "12h30m", "90d" or "0".
func (s *span) UnmarshalText(b []byte) error {
	text := string(b)
	days, isDays := strings.CutSuffix(text, "d")
	var d time.Duration
	var err error
	if isDays || text == "0" {
		var n int
		if n, err = strconv.Atoi(days); err == nil && (n < 0 || n > 36500) {
			err = strconv.ErrRange
		}
		d = time.Duration(n) * 24 * time.Hour
	} else {
		d, err = time.ParseDuration(text)
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a length of time like 12h or 90d", text)
	}
	*s = span(d)
	return nil
}

// since is a time, or how long before now it is.
type since struct {
	ago  span
	time time.Time
}

// UnmarshalText reads "24h", "90d" or "2026-12-24T18:30:00Z".
func (s *since) UnmarshalText(b []byte) error {
	var err error
	if s.time, err = time.Parse(time.RFC3339, string(b)); err == nil {
		return nil
	}
	if s.ago.UnmarshalText(b) != nil {
		return fmt.Errorf("%q is neither a length of time like 24h nor a time like 2026-12-24T18:30:00Z", b)
	}
	return nil
}

// at is the time; zero if there is none.
func (s since) at(now time.Time) time.Time {
	if s.ago > 0 {
		return now.Add(-time.Duration(s.ago))
	}
	return s.time
}

// seconds is s in whole seconds, at least 1 unless s is 0.
func (s span) seconds() int64 { return int64((time.Duration(s) + time.Second - 1) / time.Second) }

// from is the time s after t; nil, never, for 0.
func (s span) from(t time.Time) *time.Time {
	if s == 0 {
		return nil
	}
	t = t.Add(time.Duration(s)).UTC().Truncate(time.Second)
	return &t
}

// imageNotices are the words for why a start used another image.
var imageNotices = map[string]string{
	"replaced":   "the image of the earlier start was gone; the one that the name stood for was used",
	"not_pulled": "the update could not be pulled; the image that was there was used",
	"interim":    "the default image was still being built; the slim one was used",
}

// imageRows describe the image with which a workspace was last started.
func imageRows(w api.Workspace) [][]string {
	var rows [][]string
	switch {
	case w.ImageDigest != nil:
		rows = append(rows, []string{"Image digest:", *w.ImageDigest})
	case w.ImageID != nil:
		rows = append(rows, []string{"Image ID:", *w.ImageID})
	}
	if w.ImageNotice != nil {
		rows = append(rows, []string{"Image notice:", inWords(imageNotices, *w.ImageNotice)})
	}
	switch {
	case w.ImageUpdateRequested:
		rows = append(rows, []string{"Image update:", "takes effect at the next start"})
	case w.ImageUpdateAvailable:
		rows = append(rows, []string{"Image update:", "available; run: codehub update-image " + w.Name})
	}
	return rows
}

// image names the image of the next start and, where it differs, that of the
// container.
func image(w api.Workspace) string {
	if w.RunningImageRef == nil || *w.RunningImageRef == w.ImageRef {
		return w.ImageRef
	}
	return w.ImageRef + " from the next start on; running " + *w.RunningImageRef
}

// usageRows describes what a workspace uses, and what keeps it awake.
func usageRows(u *api.Usage) [][]string {
	if u == nil {
		return nil
	}
	of := func(used, limit string, limited bool) string {
		if !limited {
			return used
		}
		return used + " of " + limit
	}
	rows := [][]string{
		{"Processors:", of(strconv.FormatFloat(u.CPU, 'f', 2, 64), strconv.FormatFloat(u.CPULimit, 'g', 4, 64), u.CPULimit > 0)},
		{"Memory:", of(terminal.Size(u.Memory), terminal.Size(u.MemoryLimit), u.MemoryLimit > 0)},
	}
	for i, h := range u.Holders {
		name := ""
		if i == 0 {
			name = "Kept awake by:"
		}
		rows = append(rows, []string{name, h.What + ", since " + terminal.Time(h.Since)})
	}
	return rows
}
