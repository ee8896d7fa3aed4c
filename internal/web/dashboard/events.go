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
	"strings"
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

// feed computes the changes of one page since the previous call.
type feed interface {
	// next returns the fragments to swap, empty if nothing changed, and whether an operation is
	// running.
	next(ctx context.Context) (html []byte, busy bool, err error)
	// log has the log of the workspace that the page waits for; nil for other pages.
	log() <-chan output
	// stale reports, once, that something has changed that is no event.
	stale() bool
	// due is when the page changes without an event, zero if unknown.
	due() time.Time
	// pace combines the events of this time into one refresh.
	pace() time.Duration
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
	l := &live{d: d, stream: s, feed: d.feedFor(r, who.Caller, out.Wake), sub: sub, awaited: true}
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

// feedFor returns the feed of the page that r names. It calls wake when it has a part of a log.
func (d *Dashboard) feedFor(r *http.Request, c workspace.Caller, wake func()) feed {
	q := r.URL.Query()
	base := d.newFeed(r, c)
	if id := q.Get("wait"); workspace.ValidID(id) {
		return &waitFeed{feedBase: base, id: workspace.ID(id), follower: newLogFollower(d, c, workspace.ID(id), wake), entry: entryPath(workspace.ID(id), q.Get("path")), awaitsLimit: q.Has("limit")}
	}
	if id := q.Get("workspace"); workspace.ValidID(id) {
		return &detailFeed{feedBase: base, id: workspace.ID(id), cursor: q.Get("archives"), ports: &portWatcher{d: d, c: c, id: workspace.ID(id), wake: wake}}
	}
	switch {
	case q.Has("all") && c.Admin && d.Admin != nil:
		return &allFeed{feedBase: base, q: allQueryOf(q)}
	case workspace.ValidID(q.Get("any")) && c.Admin && d.Admin != nil:
		return &anyFeed{feedBase: base, id: workspace.ID(q.Get("any"))}
	case q.Has("all"), q.Has("any"):
		return &noticesFeed{feedBase: base}
	case q.Has("admin") && c.Admin && d.Admin != nil:
		return &adminFeed{feedBase: base, pages: adminPages{users: q.Get("cursor"), orphans: q.Get("orphans"), find: findable(q.Get("find"))}}
	case q.Has("admin"), q.Has("notices"):
		return &noticesFeed{feedBase: base}
	}
	return &listFeed{feedBase: base, q: listQueryOf(q)}
}

func (d *Dashboard) newFeed(r *http.Request, c workspace.Caller) feedBase {
	return feedBase{d: d, c: c, set: d.set(r), seed: maphash.MakeSeed(), states: map[string]string{}}
}

// streamOf returns the address of the page's stream, with a digest of what the page already
// shows.
func streamOf(address string, shown []byte, err error) string {
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
	d      *Dashboard
	stream *stream
	feed   feed
	sub    *bus.Subscription
	// shown is the digest of what the page shows: an equal first result is not sent.
	shown   string
	begun   bool      // the first result was sent
	awaited bool      // a refresh is due, to which further events belong
	refresh time.Time // the next one
}

// step sends the changes that the feed returns when a refresh is due, and the log at once. After
// an error the browser reconnects.
func (l *live) step(ctx context.Context) (next time.Time, err error) {
	changed, err := l.sub.Skip()
	if err != nil {
		return time.Time{}, err
	}
	if (l.feed.stale() || changed) && !l.awaited {
		l.refresh, l.awaited = time.Now().Add(l.feed.pace()), true
	}
	select {
	case text := <-l.feed.log():
		if err := l.stream.log(text); err != nil {
			return time.Time{}, err
		}
	default:
	}
	if time.Now().Before(l.refresh) {
		return l.refresh, nil
	}
	html, busy, err := l.feed.next(ctx)
	if err != nil && ctx.Err() == nil {
		// The page stays as it is until a later refresh succeeds.
		l.d.Log.Warn("page refresh failed", "err", err)
	}
	switch {
	case !l.begun && (err != nil || digest(html) == l.shown):
		err = l.stream.event("hello", nil)
	case len(html) > 0:
		err = l.stream.event("update", html)
	case time.Since(l.stream.sent) >= idleRefresh/2:
		err = l.stream.comment()
	default:
		err = nil
	}
	l.begun, l.awaited = true, false
	after := idleRefresh
	if busy {
		after = busyRefresh
	}
	if at := l.feed.due(); !at.IsZero() {
		after = min(after, max(at.Sub(l.d.Now()), gather))
	}
	l.refresh = time.Now().Add(after)
	return l.refresh, err
}

// feedBase holds what all feeds share.
type feedBase struct {
	d      *Dashboard
	c      workspace.Caller
	set    *pageSet
	seed   maphash.Seed      // of the digests
	sent   map[string]uint64 // fragment → digest of what the page shows
	states map[string]string // workspace → last announced state
	change time.Time         // when the page changes without an event; zero if it does not
}

func (b *feedBase) due() time.Time { return b.change }

func (b *feedBase) pace() time.Duration { return gather }

func (b *feedBase) log() <-chan output { return nil }

func (b *feedBase) stale() bool { return false }

// timeless makes a view independent of the time of rendering, so that a fragment changes only with
// its subject. The browser fills in relative times before it shows them.
func timeless(v view) view {
	v.Now = time.Time{}
	return v
}

func (b *feedBase) execute(name string, data any) (string, error) {
	var out bytes.Buffer
	if err := b.set.parts.ExecuteTemplate(&out, name, data); err != nil {
		return "", err
	}
	return out.String(), nil
}

// withNotices adds the fragments that are on every page.
func (b *feedBase) withNotices(names []string, html map[string]string, n notices) ([]string, error) {
	n.Now, n.OOB = time.Time{}, true
	b.change = n.due
	for _, name := range []string{"trouble", "ending", "told", "bell"} {
		var err error
		if html[name], err = b.execute(name, n); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// fresh returns, in order, the fragments that have changed since they were sent.
func (b *feedBase) fresh(names []string, html map[string]string) []byte {
	var out bytes.Buffer
	sent := make(map[string]uint64, len(html))
	for n, text := range html {
		sent[n] = maphash.String(b.seed, text)
	}
	for _, n := range names {
		if old, ok := b.sent[n]; !ok || old != sent[n] {
			out.WriteString(html[n])
		}
	}
	b.sent = sent
	return out.Bytes()
}

// announce returns the fragment by which screen readers announce a workspace's new state; empty
// the first time.
func (b *feedBase) announce(v view) string {
	old, known := b.states[v.ID]
	b.states[v.ID] = v.State
	if !known || old == v.State {
		return ""
	}
	return announcement(b.set.lang, v)
}

func announcement(l *catalogue.Language, v view) string {
	return `<div id="announcer" hx-swap-oob="innerHTML">` + template.HTMLEscapeString(l.T("announce", v.Name, l.T("state."+v.State))) + `</div>`
}

// stream writes server-sent events.
type stream struct {
	w    io.Writer
	sent time.Time // time of the last write; zero before the first
}

func (s *stream) event(name string, data []byte) error {
	var b bytes.Buffer
	if s.sent.IsZero() {
		// A browser that reconnects sends this id: its page may no longer be as it
		// was loaded.
		fmt.Fprintf(&b, "retry: %d\nid: 1\n", time.Second.Milliseconds())
	}
	fmt.Fprintf(&b, "event: %s\n", name)
	for line := range bytes.Lines(data) {
		b.WriteString("data: ")
		b.Write(bytes.TrimRight(line, "\r\n"))
		b.WriteByte('\n')
	}
	if len(data) == 0 {
		b.WriteString("data:\n")
	}
	b.WriteByte('\n')
	return s.write(b.Bytes())
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

func (s *stream) comment() error { return s.write([]byte(": here\n\n")) }

func (s *stream) write(b []byte) error {
	s.sent = time.Now()
	_, err := s.w.Write(b)
	return err
}
