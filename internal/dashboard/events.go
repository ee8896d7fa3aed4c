package dashboard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"codehub/internal/accesslog"
	"codehub/internal/bus"
	"codehub/internal/dashboard/catalogue"
	"codehub/internal/workspace"
)

// How often a stream reads its page again. Events only bring that forward.
const (
	// busyRefresh is the interval while an operation runs on the page.
	busyRefresh = 2 * time.Second
	// idleRefresh is the interval otherwise.
	idleRefresh = 30 * time.Second
	// gather lets a burst of events become one refresh.
	gather = 50 * time.Millisecond
	// writeWithin is how long a browser may take to accept what is sent.
	writeWithin = 15 * time.Second
)

// feed works out what changed on one page since it last was asked.
type feed interface {
	// next returns the fragments to swap, empty if there is nothing new, and
	// whether something is under way.
	next(ctx context.Context) (html []byte, busy bool, err error)
	// due is when the page changes by itself, zero if it is not known to.
	due() time.Time
}

// noticesStream is the stream of pages that have nothing else to keep.
const noticesStream = "/dashboard/events?notices=1"

// events streams HTML fragments that keep a page as it would be if it were
// loaded now. A page has one stream, which it gives up while it is hidden.
func (d *Dashboard) events(w http.ResponseWriter, r *http.Request) {
	accesslog.Quiet(r.Context())
	secureHeaders(w.Header())
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // for proxies that would hold events back
	s := &stream{w: w, rc: http.NewResponseController(w)}

	who, err := d.Auth.Identify(r, false)
	if err != nil {
		if workspace.CodeOf(err) != workspace.CodeUnauthenticated {
			d.logFailure(r, err)
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		// Said as an event, as a browser tries again and again after any
		// other answer.
		_ = s.event("logged-out", nil)
		return
	}
	accesslog.SetUser(r.Context(), who.Caller.UserID)
	ctx, stop := d.Auth.Watch(r.Context(), who.Caller.Session)
	defer stop()
	sub, err := d.Events.Subscribe(ctx, who.Caller.UserID)
	if err != nil {
		http.Error(w, "", http.StatusServiceUnavailable)
		return
	}
	defer sub.Close()
	f := d.feedFor(r, who.Caller)
	seen := ""
	if r.Header.Get("Last-Event-ID") == "" {
		seen = r.URL.Query().Get("seen")
	}
	if err := d.follow(ctx, s, f, changes(ctx, sub), seen); err != nil && ctx.Err() == nil {
		d.logFailure(r, err)
	}
	if ctx.Err() != nil && r.Context().Err() == nil {
		_ = s.event("logged-out", nil)
	}
}

// changes turns a subscription into a channel that says no more than that
// there is something to look at. It is closed when the subscription ends.
func changes(ctx context.Context, sub *bus.Subscription) <-chan struct{} {
	c := make(chan struct{}, 1)
	go func() {
		defer close(c)
		for {
			if _, err := sub.Next(ctx); err != nil {
				return
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return c
}

func (d *Dashboard) feedFor(r *http.Request, c workspace.Caller) feed {
	q := r.URL.Query()
	base := d.newFeed(r, c)
	if id := q.Get("wait"); workspace.ValidID(id) {
		return &waitFeed{feedBase: base, id: workspace.ID(id), forRoom: q.Has("room")}
	}
	if id := q.Get("workspace"); workspace.ValidID(id) {
		return &detailFeed{feedBase: base, id: workspace.ID(id)}
	}
	switch {
	case q.Has("admin") && c.Admin && d.Admin != nil:
		return &adminFeed{feedBase: base, cursor: q.Get("cursor")}
	case q.Has("admin"), q.Has("notices"):
		return &noticesFeed{feedBase: base}
	}
	return &listFeed{feedBase: base, q: listQueryOf(q)}
}

func (d *Dashboard) newFeed(r *http.Request, c workspace.Caller) feedBase {
	return feedBase{d: d, c: c, set: d.set(r), states: map[string]string{}}
}

// streamOf is the address of the stream that keeps a page, with a digest of
// what the page shows already.
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

// follow sends what f finds until the browser leaves. A first look whose
// digest is seen is what the page shows already.
func (d *Dashboard) follow(ctx context.Context, s *stream, f feed, changed <-chan struct{}, seen string) error {
	look := time.NewTimer(0)
	defer look.Stop()
	first, soon := true, true
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-changed:
			if !ok {
				return nil // the browser connects again
			}
			if !soon {
				look.Reset(gather)
				soon = true
			}
			continue
		case <-look.C:
		}
		html, busy, err := f.next(ctx)
		if err != nil && ctx.Err() == nil {
			// The page stays as it is; the next look may go better.
			d.Log.Warn("looking after a page failed", "err", err)
		}
		switch {
		case first && (err != nil || digest(html) == seen):
			err = s.event("hello", nil)
		case len(html) > 0:
			err = s.event("update", html)
		case time.Since(s.sent) >= idleRefresh/2:
			err = s.comment()
		default:
			err = nil
		}
		if err != nil {
			return nil // the browser left
		}
		first, soon = false, false
		after := idleRefresh
		if busy {
			after = busyRefresh
		}
		if at := f.due(); !at.IsZero() {
			after = min(after, max(at.Sub(d.Now()), gather))
		}
		look.Reset(after)
	}
}

// feedBase is what the feeds share.
type feedBase struct {
	d      *Dashboard
	c      workspace.Caller
	set    *pageSet
	sent   map[string]string // fragment → what the page shows
	states map[string]string // workspace → state that was last announced
	change time.Time         // when the page changes by itself; zero if it does not
}

func (b *feedBase) due() time.Time { return b.change }

// still makes what is shown independent of when it is rendered, so that a
// fragment changes only with what it is about. How long ago something was is
// filled in by the browser, before it shows it.
func still(v view) view {
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

// withNotices adds the fragments that every page has.
func (b *feedBase) withNotices(names []string, html map[string]string, n notices) ([]string, error) {
	n.Now, n.OOB = time.Time{}, true
	b.change = n.due
	for _, name := range []string{"trouble", "ending"} {
		var err error
		if html[name], err = b.execute(name, n); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// fresh keeps those fragments, in order, that differ from what was sent.
func (b *feedBase) fresh(names []string, html map[string]string) []byte {
	var out bytes.Buffer
	for _, n := range names {
		if old, ok := b.sent[n]; !ok || old != html[n] {
			out.WriteString(html[n])
		}
	}
	b.sent = html
	return out.Bytes()
}

// announce returns the fragment that tells those who do not see the page what
// has become of a workspace; nothing the first time.
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
	w    http.ResponseWriter
	rc   *http.ResponseController
	sent time.Time // when something last was; zero before that
}

func (s *stream) event(name string, data []byte) error {
	var b bytes.Buffer
	if s.sent.IsZero() {
		// By the id a browser that connects again says that its page is no
		// longer the one that it loaded.
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

func (s *stream) comment() error { return s.write([]byte(": here\n\n")) }

func (s *stream) write(b []byte) error {
	// Servers that set no deadlines need none lifted.
	_ = s.rc.SetWriteDeadline(time.Now().Add(writeWithin))
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	s.sent = time.Now()
	return s.rc.Flush()
}
