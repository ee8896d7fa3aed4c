package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/testing/e2e/proc"
)

// apiClient is a client of the server: it sends API requests, reads the event
// stream, and navigates as a browser does.
type apiClient struct {
	*client.Client
	url     string
	token   string
	browser *http.Client

	stopEvents context.CancelFunc
	mu         sync.Mutex
	states     map[string]api.Workspace
	changed    chan struct{}
}

func login(ctx context.Context, url string) (*apiClient, error) {
	c, _, err := client.Login(ctx, url, api.Login{Username: "admin", Password: proc.AdminPassword})
	if err != nil {
		return nil, err
	}
	t, err := c.CreateToken(ctx, api.CreateToken{Name: "bench"})
	if err != nil {
		return nil, err
	}
	ectx, stop := context.WithCancel(ctx)
	a := &apiClient{Client: c, url: url, token: t.Token, stopEvents: stop, states: map[string]api.Workspace{}, changed: make(chan struct{}),
		browser: &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	go func() {
		_ = c.Events(ectx, func(e client.Event) error {
			if e.Name == api.EventUpdated {
				a.mu.Lock()
				a.states[e.ID] = e.Workspace
				close(a.changed)
				a.changed = make(chan struct{})
				a.mu.Unlock()
			}
			return nil
		})
	}()
	return a, nil
}

// await waits for an event with the workspace in phase and without an
// operation.
func (a *apiClient) await(ctx context.Context, id, phase string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		a.mu.Lock()
		w, changed := a.states[id], a.changed
		a.mu.Unlock()
		switch {
		case w.Phase == phase && w.Operation == "NONE":
			return nil
		case w.Phase == "ERROR":
			return fmt.Errorf("workspace %s is in ERROR: %s: %s", id, deref(w.ErrorReason), deref(w.ErrorMessage))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("workspace %s is %s, %s: %w", id, w.Phase, w.Operation, ctx.Err())
		case <-changed:
		}
	}
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (a *apiClient) create(ctx context.Context, name, image string) (string, error) {
	w, err := a.Create(ctx, api.CreateWorkspace{Name: name, ImageRef: image})
	if err != nil {
		return "", err
	}
	return w.ID, a.await(ctx, w.ID, "RUNNING")
}

func (a *apiClient) createStopped(ctx context.Context, name, image string) (string, error) {
	standby := "STANDBY"
	w, err := a.Create(ctx, api.CreateWorkspace{Name: name, ImageRef: image, DesiredState: &standby})
	if err != nil {
		return "", err
	}
	return w.ID, a.await(ctx, w.ID, "STANDBY")
}

func (a *apiClient) setDesired(ctx context.Context, id, state string) error {
	_, err := a.Want(ctx, id, state, false)
	return err
}

func (a *apiClient) stop(ctx context.Context, id string) error {
	if err := a.setDesired(ctx, id, "STANDBY"); err != nil {
		return err
	}
	return a.await(ctx, id, "STANDBY")
}

func (a *apiClient) setAll(ctx context.Context, ids []string, state string) error {
	errs := make([]error, len(ids))
	var g sync.WaitGroup
	for i, id := range ids {
		g.Go(func() {
			if errs[i] = a.setDesired(ctx, id, state); errs[i] == nil {
				errs[i] = a.await(ctx, id, state)
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// open opens a stopped workspace as a browser does: the loading page, the event
// that it waits for, and then the IDE's page.
func (a *apiClient) open(ctx context.Context, id string) error {
	a.mu.Lock()
	delete(a.states, id) // waits for later events only
	a.mu.Unlock()
	status, _, err := a.navigate(ctx, id)
	if err != nil {
		return err
	}
	if status != http.StatusServiceUnavailable && status != http.StatusOK {
		return fmt.Errorf("the loading page has status %d", status)
	}
	for {
		if err := a.await(ctx, id, "RUNNING"); err != nil {
			return err
		}
		status, body, err := a.navigate(ctx, id)
		if err != nil {
			return err
		}
		if status < 400 {
			return nil
		}
		if status != http.StatusServiceUnavailable {
			return fmt.Errorf("the workspace's page has status %d: %.200s", status, body)
		}
	}
}

func (a *apiClient) navigate(ctx context.Context, id string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+"/w/"+id+"/", nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set(api.TokenHeader, a.token)
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	req.Header.Set("Sec-Fetch-Dest", "document")
	req.Header.Set("Accept", "text/html")
	resp, err := a.browser.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, strings.TrimSpace(string(b)), err
}

func (a *apiClient) remove(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		_, err := a.Delete(ctx, id, false)
		var e *client.Error
		if err == nil || ctx.Err() != nil || (errors.As(err, &e) && e.Status == http.StatusNotFound) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	for ctx.Err() == nil { // until the deletion has completed; the grace is zero
		if _, err := a.Get(ctx, id); err != nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// removeAll deletes all workspaces.
func (a *apiClient) removeAll() {
	a.stopEvents()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	list, err := a.List(ctx, client.Filter{})
	if err != nil {
		return
	}
	for _, w := range list {
		a.remove(w.ID)
	}
}
