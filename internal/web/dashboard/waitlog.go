package dashboard

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"codehub/internal/workspace"
)

// Bounds of the log on the page of a workspace that starts.
const (
	// followedLines is how many earlier lines of the container's output the page gets.
	followedLines = 200
	// followedBytes is how much output one page gets in all.
	followedBytes = 1 << 20
	// maxLine is the longest line; the rest of a longer one is on the next line.
	maxLine = 16 << 10
	// maxFollowed bounds how many logs one user's pages follow at once, and how many they
	// read: each holds a connection to Docker, which all users share.
	maxFollowed = 8
)

// output is a part of a workspace's log.
type output struct {
	begins bool // the log of a container begins: the page drops what it has
	lines  []byte
}

// logFollower follows the log of a workspace's container for one page.
type logFollower struct {
	d    *Dashboard
	c    workspace.Caller
	id   workspace.ID
	out  chan output // capacity 1
	wake func()      // wakes the reader of out
	left int         // bytes
	pageTask
}

func newLogFollower(d *Dashboard, c workspace.Caller, id workspace.ID, wake func()) *logFollower {
	return &logFollower{d: d, c: c, id: id, out: make(chan output, 1), wake: wake, left: followedBytes}
}

// start follows the log until the container ends, unless it is followed already. The caller has
// checked that the user owns the workspace.
func (f *logFollower) start(ctx context.Context) {
	f.begin(&f.d.followed, f.c.UserID, func() {
		w := &followWriter{ctx: ctx, f: f, begins: true}
		if err := f.d.Logs.Logs(ctx, f.id, followedLines, true, w); err != nil && ctx.Err() == nil {
			// The container may be gone. The controller reports all other errors of Docker.
			f.d.Log.Debug("follow the container's log failed", "workspace", f.id, "err", err)
		}
		if len(w.part) > 0 {
			_ = w.send(w.part)
		}
	})
}

var errLogFull = errors.New("the page has got enough of the log")

// followWriter sends whole lines.
type followWriter struct {
	ctx    context.Context
	f      *logFollower
	part   []byte
	begins bool
}

func (w *followWriter) Write(p []byte) (int, error) {
	w.part = append(w.part, p...)
	end := bytes.LastIndexByte(w.part, '\n') + 1
	if end == 0 && len(w.part) >= maxLine {
		end = len(w.part)
	}
	if end == 0 {
		return len(p), nil
	}
	if err := w.send(w.part[:end]); err != nil {
		return 0, err
	}
	w.part = append(w.part[:0], w.part[end:]...)
	return len(p), nil
}

func (w *followWriter) send(lines []byte) error {
	if w.f.left <= 0 {
		return errLogFull
	}
	lines = lines[:min(len(lines), w.f.left)]
	w.f.left -= len(lines)
	text := []byte(readable(string(lines)))
	select {
	case w.f.out <- output{begins: w.begins, lines: text}:
		w.begins = false
		w.f.wake()
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// pageTask runs for an open page, once at a time.
type pageTask struct{ busy atomic.Bool }

// begin calls do in the background and returns true, unless it runs already or the user's pages
// have maxFollowed open.
func (t *pageTask) begin(open *perUser, user string, do func()) bool {
	if !t.busy.CompareAndSwap(false, true) {
		return false
	}
	if !open.add(user) {
		t.busy.Store(false)
		return false
	}
	go func() {
		defer t.busy.Store(false)
		defer open.remove(user)
		do()
	}()
	return true
}

// perUser counts what each user's pages have open.
type perUser struct {
	mu sync.Mutex
	by map[string]int
}

// add counts one more, unless the user has maxFollowed.
func (p *perUser) add(user string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[user] >= maxFollowed {
		return false
	}
	if p.by == nil {
		p.by = map[string]int{}
	}
	p.by[user]++
	return true
}

func (p *perUser) remove(user string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by[user]--; p.by[user] == 0 {
		delete(p.by, user)
	}
}
