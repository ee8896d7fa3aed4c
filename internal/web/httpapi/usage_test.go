package httpapi

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"codehub/api"
	"codehub/internal/postgres"
)

// usageRows is so many that a report does not fit into the buffers of a connection.
const usageRows = 8000

// usageEnv has an API with a small pool, which waits for slow readers.
func usageEnv(t *testing.T) (*env, *httptest.Server) {
	t.Helper()
	e := newEnv(t)
	e.Exec(`UPDATE users SET admin = true WHERE username = 'ann'`)
	e.Auth.InvalidateAll()
	e.Exec(`
		INSERT INTO workspace_usage (day, workspace_id, owner_user_id, running_seconds)
		SELECT (now() AT TIME ZONE 'UTC')::date - d, gen_random_uuid(), $1, d FROM generate_series(0, 9) d, generate_series(1, $2 / 10)`, e.ann.User.ID, usageRows)
	small, err := postgres.Open(t.Context(), e.DSN, postgres.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(small.Close)
	cfg := e.cfg
	cfg.Store, cfg.WriteWithin = small, time.Hour
	server := httptest.NewUnstartedServer(Outer(slog.New(slog.DiscardHandler), NewMetrics(), e.Streams, New(cfg)))
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		if s == http.StateNew {
			_ = c.(*net.TCPConn).SetWriteBuffer(128 << 10)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return e, server
}

// report begins a download. Nothing but its first byte is read.
func (e *env) report(server *httptest.Server, format string) *http.Response {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	e.t.Cleanup(cancel)
	late := time.AfterFunc(limit, cancel)
	defer late.Stop()
	r, err := http.NewRequestWithContext(ctx, "GET", server.URL+Prefix+"/admin/usage?format="+format, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	r.AddCookie(e.ann.cookie)
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			err = c.(*net.TCPConn).SetReadBuffer(128 << 10)
		}
		return c, err
	}
	res, err := (&http.Transport{DialContext: dial}).RoundTrip(r)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { res.Body.Close() })
	if _, err := io.ReadFull(res.Body, make([]byte, 1)); err != nil {
		e.t.Fatalf("%s: %s: %v", format, res.Status, err)
	}
	return res
}

// Downloads of the use whose readers are slow hold no connections to the database, and end when
// their user is no administrator any more.
func TestUsageDownloads(t *testing.T) {
	t.Parallel()
	e, server := usageEnv(t)
	var open []*http.Response
	for _, format := range []string{"csv", "json", "csv", "json"} {
		open = append(open, e.report(server, format)) // the pool has two connections
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", server.URL+Prefix+"/workspaces", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(e.ann.cookie)
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("another request: %v, %v", res, err)
	}
	res.Body.Close()
	// Two are read to the end, with all rows.
	if rows, err := csv.NewReader(open[0].Body).ReadAll(); err != nil || len(rows) != usageRows+1 {
		t.Errorf("CSV: %d rows, %v", len(rows), err)
	}
	body, err := io.ReadAll(open[1].Body)
	var all api.UsageReport
	d := json.NewDecoder(bytes.NewReader(append([]byte("{"), body...)))
	d.DisallowUnknownFields()
	if err == nil {
		err = d.Decode(&all)
	}
	if err != nil || len(all.Days) != usageRows || all.From == "" {
		t.Errorf("JSON: %d days, %v", len(all.Days), err)
	}
	e.Exec(`UPDATE users SET admin = false WHERE username = 'ann'`)
	for _, res := range open[2:] {
		if n, err := io.Copy(io.Discard, res.Body); err == nil {
			t.Errorf("a download went on to its end after its user was demoted: %d bytes", n)
		}
	}
}
