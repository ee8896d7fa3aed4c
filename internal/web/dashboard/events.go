package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"html/template"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"codehub/internal/bus"
	"codehub/internal/gateway/eventstream"
	"codehub/internal/web/accesslog"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// Intervals of a stream. Events cause an earlier refresh.
const (
	// busyRefresh is the interval while an operation runs on the page.
	busyRefresh = 2 * time.Second
	// idleRefresh is the interval at other times.
	idleRefresh = 30 * time.Second
	// gather combines a burst of events into one refresh.
	gather = 50 * time.Millisecond
	// writeWithin is the deadline of one write to a browser.
	writeWithin = 15 * time.Second
)

// livePage is what a page shows that changes while it is open, without the notices of every page.
type livePage struct {
	regions []region
	views   []view    // the workspaces whose new states screen readers announce
	notices *notices  // nil: still to be read
	busy    bool      // an operation is running, of another kind than those of views
	due     time.Time // when it changes without an event; zero: unknown
}

// region is a fragment that is sent again when it has changed. While shape stays the same, only
// the rows in it that have changed are sent.
type region struct {
	part
	shape string
	rows  []part
}

// livePageOf is a page of the templates names with the same data.
func livePageOf(data any, names ...string) (s livePage) {
	for _, name := range names {
		s.regions = append(s.regions, region{part: part{name, data}})
	}
	return s
}

// noticesStream is the stream of pages without other live content.
const noticesStream = "/dashboard/events?notices=1"

// events streams the HTML fragments that keep a page current. A page has one stream and closes
// it while it is hidden.
func (d *Dashboard) events(w http.ResponseWriter, r *http.Request) {
	accesslog.Quiet(r.Context())
	d.secureHeaders(w.Header())
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies that would hold events back
	out := eventstream.New(w, r, writeWithin)
	s := &stream{w: out}

	who, err := d.Auth.Identify(r, false)
	if err != nil {
		if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			d.logFailure(r, err)
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		// This is an event because a browser retries after any other response.
		out.Run(func() (time.Time, error) { return time.Time{}, err }, func(error) { _ = s.event("logged-out", nil) })
		return
	}
	accesslog.SetUser(r.Context(), who.Caller.UserID)
	ctx, stop := d.Auth.Watch(out.Context(), who.Caller.Session)
	subscribe := d.Events.Subscribe
	if q := r.URL.Query(); who.Caller.Admin && (q.Has("all") || q.Has("any")) {
		subscribe = d.Events.SubscribeAll
	}
	sub, err := subscribe(ctx, who.Caller.UserID, out.Wake)
	if err != nil {
		stop()
		out.Close()
		http.Error(w, "", http.StatusServiceUnavailable)
		return
	}
	l := d.newLive(r, who.Caller, out.Wake)
	l.stream, l.sub = s, sub
	if r.Header.Get("Last-Event-ID") == "" {
		l.shown = strings.Clone(r.URL.Query().Get("seen"))
	}
	out.Run(func() (time.Time, error) { return l.step(ctx) }, func(error) {
		if ctx.Err() != nil && out.Context().Err() == nil {
			_ = s.event("logged-out", nil)
		}
		sub.Close()
		stop()
		out.Close()
	})
}

// newLive returns the stream of the page that r names, without its connection and events.
func (d *Dashboard) newLive(r *http.Request, c workspace.Caller, wake func()) *live {
	q := r.URL.Query()
	l := &live{d: d, c: c, set: d.set(r), pace: gather, states: map[string]string{}, awaited: true}
	admin := c.Admin && d.Admin != nil
	switch id := workspace.ID(q.Get("any")); {
	case workspace.ValidID(q.Get("wait")):
		id = workspace.ID(q.Get("wait"))
		log := newLogFollower(d, c, id, wake)
		l.log = log.out
		l.read = d.followWait(c, id, entryPath(id, q.Get("path")), q.Has("limit"), log)
	case workspace.ValidID(q.Get("workspace")) && q.Has("backups"):
		l.read = d.followBackups(c, workspace.ID(q.Get("workspace")), q.Get("cursor"))
	case workspace.ValidID(q.Get("workspace")):
		id = workspace.ID(q.Get("workspace"))
		l.read = d.followDetail(id, q.Get("archives"), &portWatcher{d: d, c: c, id: id, changed: func() {
			l.changed.Store(true)
			wake()
		}})
	case q.Has("all") && admin:
		l.read, l.pace = d.followAll(c, allQueryOf(q)), allPace
	case workspace.ValidID(string(id)) && admin:
		l.read, l.pace = d.followAny(c, id), allPace
	case q.Has("admin") && admin:
		l.read = d.followAdmin(c, adminPages{users: q.Get("cursor"), orphans: q.Get("orphans"), find: findable(q.Get("find"))})
	case q.Has("all"), q.Has("any"), q.Has("admin"), q.Has("notices"):
		l.read = func(context.Context) (livePage, error) { return livePage{}, nil }
	default:
		l.read = d.followList(c, listQueryOf(q))
	}
	return l
}

// streamOf returns the address of the stream of a page that shows s and n, with their digest.
func (d *Dashboard) streamOf(r *http.Request, address string, s livePage, n notices) string {
	s.notices = &n
	shown, err := (&live{d: d, set: d.set(r), states: map[string]string{}}).fresh(s)
	if err != nil {
		return address // the stream sends everything
	}
	join := "?"
	if strings.Contains(address, "?") {
		join = "&"
	}
	return address + join + "seen=" + digest(shown)
}

func digest(html []byte) string {
	sum := sha256.Sum256(html)
	return hex.EncodeToString(sum[:8])
}

// live is the open stream of a page.
type live struct {
	d       *Dashboard
	c       workspace.Caller
	set     *pageSet
	stream  *stream
	sub     *bus.Subscription
	read    func(context.Context) (livePage, error)
	pace    time.Duration // combines the events of this time into one refresh
	log     <-chan output // of the workspace that the page waits for; nil for other pages
	changed atomic.Bool   // something has changed that is no event

	sent   []uint64          // digests of what the page shows
	states map[string]string // workspace → last announced state
	// shown is the digest of what the page shows: an equal first result is not sent.
	shown   string
	awaited bool      // a refresh is due, to which further events belong
	refresh time.Time // the next one
}

// step sends what has changed on the page when a refresh is due, and the log at once. After an
// error the browser reconnects.
func (l *live) step(ctx context.Context) (next time.Time, err error) {
	changed, err := l.sub.Skip()
	if err != nil {
		return time.Time{}, err
	}
	if (l.changed.Swap(false) || changed) && !l.awaited {
		l.refresh, l.awaited = time.Now().Add(l.pace), true
	}
	select {
	case text := <-l.log:
		if err := l.stream.log(text); err != nil {
			return time.Time{}, err
		}
	default:
	}
	if time.Now().Before(l.refresh) {
		return l.refresh, nil
	}
	html, s, err := l.next(ctx)
	if err != nil && ctx.Err() == nil {
		// The page stays as it is until a later refresh succeeds.
		l.d.Log.Warn("page refresh failed", "err", err)
	}
	switch {
	case l.stream.sent.IsZero() && (err != nil || digest(html) == l.shown):
		err = l.stream.event("hello", nil)
	case len(html) > 0:
		err = l.stream.event("update", html)
	case time.Since(l.stream.sent) >= idleRefresh/2:
		err = l.stream.comment()
	default:
		err = nil
	}
	l.awaited = false
	after := idleRefresh
	if s.busy {
		after = busyRefresh
	}
	if !s.due.IsZero() {
		after = min(after, max(s.due.Sub(l.d.Now()), gather))
	}
	l.refresh = time.Now().Add(after)
	return l.refresh, err
}

// next reads the page, and returns what has changed since it was sent.
func (l *live) next(ctx context.Context) ([]byte, livePage, error) {
	s, err := l.read(ctx)
	if err == nil && s.notices == nil {
		s.notices = new(notices)
		*s.notices, err = l.d.readNotices(ctx, l.c)
	}
	if err != nil {
		return nil, s, err
	}
	for _, v := range s.views {
		s.busy = s.busy || v.Tone == toneBusy
	}
	s.due = earlier(s.due, s.notices.due)
	html, err := l.fresh(s)
	return html, s, err
}

// earlier returns the earlier of two times, of which one may be zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// timeless makes a view independent of the time of rendering, so that a fragment changes only with
// its subject. The browser fills in relative times before it shows them.
func timeless(v view) view {
	v.Now = time.Time{}
	return v
}

func allTimeless(views []view) []view {
	out := make([]view, len(views))
	for i, v := range views {
		out[i] = timeless(v)
	}
	return out
}

// digests is the seed of the digests of fragments.
var digests = maphash.MakeSeed()

// fresh returns, in order, the fragments of s that have changed since they were sent, and the new
// states of its workspaces.
func (l *live) fresh(s livePage) ([]byte, error) {
	var out bytes.Buffer
	var sent []uint64
	// add notes that the page shows text, and reports whether it showed it before.
	add := func(text []byte) bool {
		sum := maphash.Bytes(digests, text)
		sent = append(sent, sum)
		return slices.Contains(l.sent, sum)
	}
	// send adds a fragment to out unless it was sent or is in a whole that is.
	send := func(p part, within bool) error {
		at := out.Len()
		if err := l.set.parts.ExecuteTemplate(&out, p.Name, p.Data); err != nil {
			return err
		}
		if add(out.Bytes()[at:]) || within {
			out.Truncate(at)
		}
		return nil
	}
	n := *s.notices
	n.Now, n.OOB = time.Time{}, true
	for _, g := range slices.Concat(s.regions, livePageOf(n, "trouble", "ending", "told", "bell").regions) {
		whole := g.shape == "" || !add([]byte(g.Name+" "+g.shape))
		if whole {
			if err := send(g.part, false); err != nil {
				return nil, err
			}
		}
		for _, row := range g.rows {
			if err := send(row, whole); err != nil {
				return nil, err
			}
		}
	}
	l.sent = sent
	for _, v := range s.views {
		old, known := l.states[v.ID]
		if l.states[v.ID] = v.State; known && old != v.State {
			out.WriteString(announcement(l.set.lang, v))
		}
	}
	return out.Bytes(), nil
}

// announcement is the fragment by which screen readers announce a workspace's new state.
func announcement(l *catalogue.Language, v view) string {
	return `<div id="announcer" hx-swap-oob="innerHTML">` + template.HTMLEscapeString(l.T("announce", v.Name, l.T("state."+v.State))) + `</div>`
}

// stream writes server-sent events.
type stream struct {
	w    io.Writer
	sent time.Time // time of the last write; zero before the first
}

func (s *stream) event(name string, data []byte) error {
	head := ""
	if s.sent.IsZero() {
		// A browser that reconnects sends this id: its page may no longer be as it
		// was loaded.
		head = fmt.Sprintf("retry: %d\nid: 1\n", time.Second.Milliseconds())
	}
	lines := strings.NewReplacer("\r", "", "\n", "\ndata: ").Replace(strings.TrimSuffix(string(data), "\n"))
	return s.write(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", head, name, lines))
}

// log sends a part of a log. log-begins means that it is the beginning.
func (s *stream) log(o output) error {
	if o.begins {
		if err := s.event("log-begins", nil); err != nil {
			return err
		}
	}
	return s.event("log", o.lines)
}

func (s *stream) comment() error { return s.write(": here\n\n") }

func (s *stream) write(text string) error {
	s.sent = time.Now()
	_, err := io.WriteString(s.w, text)
	return err
}
