package dashboard

import (
	"context"
	"encoding/base64"
	"fmt"
	"hash/fnv"
	"html"
	"net/http"
	"strings"
	"time"
	"unicode"

	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/web/proxy"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// How often the IDE asks for its state again.
const (
	idePoll = 20 * time.Second
	// ideEndingPoll applies while a warning is shown, or will be soon.
	ideEndingPoll = 5 * time.Second
)

var _ proxy.IDE = (*Dashboard)(nil)

// ideState is what the IDE of a workspace shows. images/ide/extension and
// internal/web/proxy/ide.js read it.
type ideState struct {
	// Open reports that the IDE can be used. Otherwise Notice says why not.
	Open   bool       `json:"open"`
	Notice *ideNotice `json:"notice,omitempty"`

	// Guest reports that the workspace is shared with the user, who cannot stop it, and
	// keeps it awake only by using it.
	Guest bool `json:"guest,omitempty"`

	Name string `json:"name,omitempty"`
	Icon string `json:"icon,omitempty"` // a data: URL
	// Started differs for each start of the container.
	Started string `json:"started,omitempty"`

	Status  string `json:"status,omitempty"` // for the status bar
	Tooltip string `json:"tooltip,omitempty"`
	// Ending warns of the idle stop at StopsAt; empty if there is none soon.
	Ending    string            `json:"ending,omitempty"`
	StopsAt   *time.Time        `json:"stops_at,omitempty"`
	KeepAwake []ideChoice       `json:"keep_awake,omitempty"`
	Texts     map[string]string `json:"texts,omitempty"`

	// Terminal is a file in the home that is there once the IDE of a repository has opened a
	// terminal and the README; empty: it opens none.
	Terminal string `json:"terminal,omitempty"`

	PollSeconds int `json:"poll_seconds"`
}

const terminalFile = runtime.HomeDir + "/" + agent.StateDir + "/terminal"

// ideNotice covers an IDE that cannot be used.
type ideNotice struct {
	Text   string `json:"text"`
	Action string `json:"action,omitempty"` // of the button, which leads to URL
	URL    string `json:"url,omitempty"`
}

// ideChoice is a time for which a workspace can be kept awake.
type ideChoice struct {
	Seconds int    `json:"seconds"` // 0: no longer
	Text    string `json:"text"`
}

// State returns what an open IDE shows of its workspace, in the language of the dashboard.
func (d *Dashboard) State(r *http.Request, v proxy.IDEVisit) any {
	return d.ideStateOf(d.set(r).lang, v)
}

func (d *Dashboard) ideStateOf(l *catalogue.Language, v proxy.IDEVisit) ideState {
	s := ideState{PollSeconds: int(idePoll / time.Second)}
	switch v.Access {
	case proxy.IDELoggedOut:
		s.Notice = &ideNotice{l.T("ide.logged_out"), l.T("ide.log_in"), d.addressOf(entryPath(v.ID, ""))}
		return s
	case proxy.IDEEnded:
		s.Notice = &ideNotice{l.T("ide.no_access"), l.T("ide.dashboard"), d.addressOf("/")}
		return s
	}
	w := v.Workspace
	if !v.LastUse.IsZero() && (w.LastAccessAt == nil || v.LastUse.After(*w.LastAccessAt)) {
		w.LastAccessAt = &v.LastUse
	}
	s.Name, s.Icon, s.Guest = w.Name, iconOf(w), v.Guest
	if s.Open = lifecycle.OpeningOf(w) == lifecycle.OpenNow; !s.Open {
		s.Notice = d.ideNoticeOf(l, w)
		return s
	}
	s.Started = w.PhaseChangedAt.UTC().Format(time.RFC3339Nano)
	s.Texts = map[string]string{
		"stay": l.T("idle.stay"), "keep_awake": l.T("ide.keep_awake"), "stop": l.T("action.stop"), "dashboard": l.T("ide.dashboard"),
		"stop_unsaved": l.T("ide.stop_unsaved", w.Name),
	}
	d.addIdle(&s, l, w)
	if s.Guest {
		return s
	}
	s.Texts["versions"] = l.T("backups.title")
	if w.Project != nil && len(w.Project.Repositories) > 0 {
		s.Terminal = terminalFile
	}
	for _, n := range awakeFor(d.KeepAwakeMax) {
		s.KeepAwake = append(s.KeepAwake, ideChoice{n, l.Lasting(time.Duration(n) * time.Second)})
	}
	if keptAwake(w, d.Now()) {
		s.KeepAwake = append(s.KeepAwake, ideChoice{0, l.T("dialog.keep-awake.off")})
	}
	return s
}

// addIdle adds when a running workspace stops.
func (d *Dashboard) addIdle(s *ideState, l *catalogue.Language, w workspace.Workspace) {
	now := d.Now()
	s.Status, s.Tooltip = w.Name, l.T("ide.never_stops")
	at, ends := lifecycle.EndsAt(w, d.TTL())
	if !ends {
		return
	}
	at = at.UTC()
	left, tooltip := l.In(at, now), l.T("ide.tooltip")
	if s.Guest {
		tooltip = l.T("ide.tooltip_guest")
	}
	s.StopsAt = &at
	if keptAwake(w, now) {
		s.Status, s.Tooltip = l.T("ide.status_awake", w.Name, left), tooltip
		return
	}
	s.Status, s.Tooltip = l.T("ide.status_stops", w.Name, left), tooltip
	from := at.Add(-warnBefore(lifecycle.TTLOf(w, d.TTL()).Standby))
	if !now.Before(from) {
		s.Ending = l.T("ide.ending", w.Name, left)
	}
	if now.Add(idePoll).After(from) {
		s.PollSeconds = int(ideEndingPoll / time.Second)
	}
}

// ideNoticeOf says why an IDE cannot be used now, and what its user can do.
func (d *Dashboard) ideNoticeOf(l *catalogue.Language, w workspace.Workspace) *ideNotice {
	open := d.addressOf(entryPath(w.ID, ""))
	state := lifecycle.StateOf(w)
	switch state {
	case lifecycle.StateStopped:
		key, unused := whyOf(w)
		text := l.T("ide.stopped", w.Name)
		switch key {
		case "idle_for":
			text = l.T("ide.stopped_idle_for", w.Name, l.Lasting(unused))
		case lifecycle.StopIdle:
			text = l.T("ide.stopped_idle", w.Name)
		case lifecycle.StopExited:
			text = l.T("ide.stopped_exited", w.Name)
		}
		return &ideNotice{text, l.T("ide.start"), open}
	case lifecycle.StateArchived, lifecycle.StateError, lifecycle.StatePending:
		return &ideNotice{l.T("ide.is", w.Name, l.T("state."+string(state))), l.T("ide.show"), open}
	case lifecycle.StateDeleted, lifecycle.StateDeleting, lifecycle.StateDeleteFailed:
		return &ideNotice{l.T("ide.deleted", w.Name), l.T("ide.dashboard"), d.addressOf("/")}
	}
	// The page continues automatically when the workspace runs again.
	return &ideNotice{Text: l.T("ide.is", w.Name, l.T("state."+string(state)))}
}

// addressOf returns the absolute address of a path of the dashboard.
func (d *Dashboard) addressOf(path string) string {
	if d.URL == nil {
		return path
	}
	return strings.TrimRight(d.URL.String(), "/") + path
}

// Ask changes the workspace for its IDE.
func (d *Dashboard) Ask(ctx context.Context, c workspace.Caller, id workspace.ID, what proxy.IDERequest, lasting time.Duration) error {
	var err error
	switch what {
	case proxy.AskStay:
		_, err = d.Store.Stay(ctx, c, id)
	case proxy.AskStop:
		standby := workspace.DesiredStandby
		_, err = d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{Desired: &standby})
	case proxy.AskKeepAwake:
		if lasting < 0 || lasting > d.KeepAwakeMax {
			return workspace.Errorf(workspace.CodeInvalid, "The time to keep a workspace awake is out of bounds.")
		}
		until := workspace.Optional[time.Time]{Set: true} // off
		if lasting > 0 {
			at := d.Now().UTC().Add(lasting)
			until.Value = &at
		}
		_, err = d.Store.PatchWorkspace(ctx, c, id, postgres.Patch{KeepAwakeUntil: until})
	}
	return err
}

// Preference returns the language or the theme that was chosen in this browser.
func (d *Dashboard) Preference(r *http.Request, p proxy.IDEPreference) string {
	name := languageCookie
	if p == proxy.PreferTheme {
		name = themeCookie
	}
	c, err := r.Cookie(name)
	if err != nil || d.PreferenceCookie(p, c.Value) == nil {
		return ""
	}
	return c.Value
}

// PreferenceCookie returns the cookie that keeps a preference on the host of a workspace.
func (d *Dashboard) PreferenceCookie(p proxy.IDEPreference, value string) *http.Cookie {
	if p == proxy.PreferTheme {
		if value != "" && !isTheme(value) {
			return nil
		}
		return preference(themeCookie, value)
	}
	if _, ok := catalogue.ByCode(value); !ok && value != "" {
		return nil
	}
	return preference(languageCookie, value)
}

// iconColors are the backgrounds of icons. White text has enough contrast on each.
var iconColors = [...]string{"#2456d6", "#0b7a5b", "#a63d00", "#8a2be2", "#b0164b", "#006a8e", "#5b5f00", "#4a3aff"}

// iconOf returns an icon for the tab of a workspace: the first letter of its name, in a
// color that belongs to its ID.
func iconOf(w workspace.Workspace) string {
	letter := "?"
	for _, r := range w.Name {
		letter = string(unicode.ToUpper(r))
		break
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(w.ID)) // it never fails
	svg := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="8" fill="%s"/><text x="16" y="23" font-family="system-ui,sans-serif" font-size="20" font-weight="600" text-anchor="middle" fill="#fff">%s</text></svg>`,
		iconColors[sum.Sum32()%uint32(len(iconColors))], html.EscapeString(letter))
	return "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(svg))
}
