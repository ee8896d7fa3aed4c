package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"codehub/api"
)

// Event is one event of a stream.
type Event struct {
	Name      string        // api.EventUpdated, api.EventDeleted, api.EventHeartbeat
	Workspace api.Workspace // of EventUpdated
	ID        string        // of the workspace
}

const (
	maxEvent = 4 << 20
	// quiet is how long a stream may send nothing, not even a heartbeat,
	// before it counts as dead.
	quiet      = 75 * time.Second
	retryFirst = 500 * time.Millisecond
	retryMost  = 15 * time.Second
)

// ErrStop, returned by the function that Events calls, ends Events without an error.
var ErrStop = errors.New("stop")

var (
	errQuiet    = errors.New("the event stream went quiet")
	errBadEvent = errors.New("the server sent an event that cannot be read")
)

// Events calls f with every event until f returns an error, which it then
// returns (nil for ErrStop), or ctx ends. A connection that breaks is opened again;
// the server then sends all workspaces again, followed by a heartbeat. Events
// returns an error when the server refuses (the session or token is no longer
// valid) or sends something else than events.
func (c *Client) Events(ctx context.Context, f func(Event) error) error {
	wait := retryFirst
	for {
		var ended error // returned by f
		err := c.stream(ctx, func(e Event) error {
			wait = retryFirst
			ended = f(e)
			return ended
		})
		var refused *Error
		switch {
		case errors.Is(ended, ErrStop):
			return nil
		case ended != nil:
			return ended
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && refused.Status < 500 && refused.Status != http.StatusTooManyRequests:
			return err
		case errors.Is(err, errBadEvent):
			return err
		}
		pause := time.NewTimer(wait/2 + rand.N(wait/2))
		wait = min(2*wait, retryMost)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// stream reads one connection's events.
func (c *Client) stream(ctx context.Context, f func(Event) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dead := time.AfterFunc(quiet, func() { cancel(errQuiet) })
	defer dead.Stop()
	resp, err := c.request(ctx, http.MethodGet, "/events", nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var name string
	var data []string
	for lines.Scan() {
		dead.Reset(quiet)
		line := lines.Text()
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && len(data) > 0:
			e, err := parseEvent(name, strings.Join(data, "\n"))
			if err != nil {
				return err
			}
			if err := f(e); err != nil {
				return err
			}
			fallthrough
		case line == "":
			name, data = "", nil
		case field == "event":
			name = value
		case field == "data":
			data = append(data, value)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

func parseEvent(name, data string) (Event, error) {
	e := Event{Name: name}
	var err error
	switch name {
	case api.EventUpdated:
		err = json.Unmarshal([]byte(data), &e.Workspace)
		e.ID = e.Workspace.ID
	case api.EventDeleted:
		var d api.Deleted
		err = json.Unmarshal([]byte(data), &d)
		e.ID = d.ID
	}
	if err != nil {
		return e, fmt.Errorf("%w: %s: %w", errBadEvent, name, err)
	}
	return e, nil
}
