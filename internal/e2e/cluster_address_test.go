package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"

	"codehub/internal/e2e/proc"
	"codehub/internal/harness"
)

// balancer sends each request to the next server that accepts the connection.
type balancer struct {
	members []*member
	turn    atomic.Int64
	by      http.RoundTripper
}

func (b *balancer) RoundTrip(r *http.Request) (resp *http.Response, err error) {
	for range b.members {
		to, perr := url.Parse(b.members[int(b.turn.Add(1))%len(b.members)].URL)
		if perr != nil {
			return nil, perr
		}
		r.URL.Host = to.Host
		if resp, err = b.by.RoundTrip(r); !errors.Is(err, syscall.ECONNREFUSED) { // no server received the request
			return resp, err
		}
	}
	return nil, err
}

// A user at the address of a load balancer in front of three servers logs in,
// creates a workspace, watches it start and opens it, while servers are killed.
func TestServersBehindOneAddress(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	address := "http://localhost:" + port
	c := startCluster(t, clusterOptions{
		servers: 3, bucket: folderBucket(t),
		settings: []string{"CODEHUB_URL=" + address, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s"},
	})
	front := &http.Server{Handler: &httputil.ReverseProxy{
		Transport:     &balancer{members: c.members, by: &http.Transport{DisableKeepAlives: true}},
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.Host = "http", r.In.Host
			r.SetXForwarded()
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0), // discards the errors of killed servers
	}}
	go func() { _ = front.Serve(l) }()
	t.Cleanup(func() { _ = front.Close() })

	b := newBrowser(t, address)
	b.login(address, proc.AdminPassword)
	b.do("create a workspace", chromedp.Click("#new-workspace"), chromedp.WaitVisible("#f-name"), chromedp.SendKeys("#f-name", "behind"),
		chromedp.Click("#dialog-form button[type=submit]"), chromedp.WaitVisible(".card"),
		until(`document.querySelector('.card')?.dataset.phase === 'RUNNING'`))
	list, err := c.members[0].api.List(t.Context(), clientFilter)
	if err != nil || len(list) != 1 {
		t.Fatalf("workspaces: %v, %v, want one", list, err)
	}
	id := list[0].ID
	leader := c.awaitLeader()
	leader.Kill()
	c.awaitLeader(leader)
	b.do("open it", navigate(address+"/w/"+id+"/"), until(`document.querySelector('#request') !== null`))
	c.otherThan(leader).setDesired(id, "STANDBY")
	b.do("see it stopped", navigate(address+"/"), until(fmt.Sprintf(`document.getElementById('ws-%s')?.dataset.phase === 'STANDBY'`, id)))
	leader.restart()
	next := c.awaitLeader()
	next.Kill()
	c.awaitLeader(next)
	b.do("open it again", navigate(address+"/w/"+id+"/"), until(`document.querySelector('#request') !== null`))
	next.restart()
}

// A server whose archives or homes would be elsewhere than those of the running
// servers, or whose data folder is theirs, refuses to start with one line.
func TestServerWithOtherSettingsIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, clusterOptions{servers: 1, bucket: folderBucket(t)})
	for _, d := range []struct {
		setting, dir string
		logs         string
	}{
		{"CODEHUB_ARCHIVE_URL=file://" + filepath.Join(t.TempDir(), "elsewhere"), "", "CODEHUB_ARCHIVE_URL"},
		{"CODEHUB_STORAGE=local-dir", "", "CODEHUB_STORAGE"},
		{"CODEHUB_LOG_LEVEL=info", c.members[0].home, c.members[0].home},
	} {
		home := d.dir
		if home == "" {
			home = filepath.Join(t.TempDir(), "data")
		}
		other, err := proc.New(proc.Options{Binary: env.binary, DataDir: home, Env: append(c.bucket.settings,
			"CODEHUB_DEFAULT_IMAGE="+env.testImage, "CODEHUB_DATABASE_URL="+c.dsn, d.setting)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
		err = other.Start(ctx)
		cancel()
		if err == nil {
			other.Close()
			t.Errorf("with %s a second server started", d.setting)
			continue
		}
		line := lastLines(other.Log(), 1)
		if !strings.Contains(line, d.logs) {
			t.Errorf("with %s the last log line is %q", d.setting, line)
		}
	}
	resp, err := http.Get(c.members[0].URL + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz of the first server: %d %s %v", resp.StatusCode, body, err)
	}
}
