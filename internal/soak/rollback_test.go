package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"codehub/api"
)

// backup holds what a database was at some time: a copy of its folder, made while
// the server was stopped.
const backup = srv + "/backup"

// backUp copies the database, after people have worked for a while, and with
// something under way.
func (w *world) backUp() error {
	ctx := w.Context()
	acting, cancel := context.WithTimeout(ctx, time.Duration(1+w.rng.IntN(4000))*time.Millisecond)
	w.live(acting)
	cancel()
	return errors.Join(
		w.stopServer(syscall.SIGTERM),
		w.machine.run(ctx, io.Discard, "rm", "-rf", backup),
		w.machine.run(ctx, io.Discard, "cp", "-a", dataDir+"/postgres", backup),
		w.startServer(ctx),
	)
}

// rollBack restores the database from that backup. The newest content of every
// home must come back, not the one of the backup.
func (w *world) rollBack() error {
	ctx := w.Context()
	w.note("the database is that of the backup again")
	if err := errors.Join(
		w.machine.run(ctx, io.Discard, "rm", "-rf", dataDir+"/postgres"),
		w.machine.run(ctx, io.Discard, "cp", "-a", backup, dataDir+"/postgres"),
		w.startServer(ctx),
	); err != nil {
		return err
	}
	for _, l := range w.lives {
		l.rolledBack = true
	}
	return w.takeOver(ctx)
}

// holdPatience is how long a server may take to find that its database was
// restored.
const holdPatience = 15 * time.Second

// takeOver has the server, which is on hold after a restore, go on with the newest
// complete copy of everything. One that never is on hold goes on by itself.
func (w *world) takeOver(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	const path = "/api/v1/admin/restore"
	begin := time.Now()
	for {
		var plan struct {
			OnHold bool `json:"on_hold"`
		}
		status, body, err := w.request(ctx, http.MethodGet, path, "")
		switch {
		case err != nil:
		case status == http.StatusNotFound: // a server that knows no hold
			return nil
		case status == http.StatusOK:
			if err = json.Unmarshal([]byte(body), &plan); err != nil {
				return fmt.Errorf("plan of a restore: %w: %s", err, body)
			}
			if !plan.OnHold {
				if time.Since(begin) > holdPatience {
					w.note("never on hold: %s", body)
					return nil
				}
				break
			}
			w.note("plan of the restore: %s", body)
			if status, body, err = w.request(ctx, http.MethodPost, path, "{}"); err == nil && status == http.StatusOK {
				w.note("applied: %s", body)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("take over after a restore: %d %s (%w)", status, body, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// request is a call of the API that the client package does not have.
func (m *machine) request(ctx context.Context, method, path, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, m.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set(api.TokenHeader, m.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}
