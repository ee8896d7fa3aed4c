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

// backupDir has the backup: a copy of the database's folder, made while the
// server was stopped.
const backupDir = srv + "/backup"

// makeBackup copies the database after the lives have run for a while, with
// operations in progress.
func (w *world) makeBackup() error {
	ctx := w.Context()
	acting, cancel := context.WithTimeout(ctx, time.Duration(1+w.rng.IntN(4000))*time.Millisecond)
	w.runLives(acting)
	cancel()
	return errors.Join(
		w.stopServer(syscall.SIGTERM),
		w.machine.run(ctx, io.Discard, "rm", "-rf", backupDir),
		w.machine.run(ctx, io.Discard, "cp", "-a", dataDir+"/postgres", backupDir),
		w.startServer(ctx),
	)
}

// restoreBackup restores the database from the backup. The take-over must keep
// the newest content of every home.
func (w *world) restoreBackup() error {
	ctx := w.Context()
	w.note("restore the database from the backup")
	if err := errors.Join(
		w.machine.run(ctx, io.Discard, "rm", "-rf", dataDir+"/postgres"),
		w.machine.run(ctx, io.Discard, "cp", "-a", backupDir, dataDir+"/postgres"),
		w.startServer(ctx),
	); err != nil {
		return err
	}
	return w.takeOver(ctx)
}

// holdPatience is the time within which a server must detect that its database
// was restored.
const holdPatience = 15 * time.Second

// takeOver makes the server take over the restored database. It returns without
// doing so if the server is not on hold within holdPatience.
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
		case status == http.StatusNotFound: // a server without this feature
			return nil
		case status == http.StatusOK:
			if err = json.Unmarshal([]byte(body), &plan); err != nil {
				return fmt.Errorf("plan of a restore: %w: %s", err, body)
			}
			if !plan.OnHold {
				if time.Since(begin) > holdPatience {
					w.note("not on hold: %s", body)
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

// request sends a request that package client does not have.
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
