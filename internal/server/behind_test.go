package server

import (
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/server/config"
)

func TestHostsBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		database, archives, redis string
		want                      []string
	}{
		{"", "file:///srv/archives", "", nil},
		{"postgres:///codehub?host=/run/postgresql", "file:///srv/archives", "", nil},
		{"postgres://u:p@db.example.com:5432/codehub", "s3://b/p", "", []string{"s3.amazonaws.com", "db.example.com"}},
		{"postgres://u:p@10.0.0.1,10.0.0.2/codehub", "s3://b?endpoint=http://10.0.0.1:9000", "", []string{"10.0.0.1", "10.0.0.2"}},
		{"", "file:///srv/archives", "rediss://:p@redis.example.com:6379/1", []string{"redis.example.com"}},
		{"", "file:///srv/archives", "redis://[2001:db8::8]", []string{"2001:db8::8"}},
		{"", "file:///srv/archives", "unix:///run/redis.sock", nil},
	} {
		u, err := url.Parse(c.archives)
		if err != nil {
			t.Fatal(err)
		}
		got, err := hostsBehind(config.Config{DatabaseURL: c.database, Archives: u, RedisURL: c.redis})
		if d := cmp.Diff(c.want, got); d != "" || err != nil {
			t.Errorf("%s, %s, %s: %v\n%s", c.database, c.archives, c.redis, err, d)
		}
	}
}

// What is on this host's loopback is behind the wall already, and what has no
// address now does not keep the server from starting.
func TestBehind(t *testing.T) {
	t.Parallel()
	u, _ := url.Parse("s3://b?endpoint=https://[2001:db8::7]:9000")
	got := behind(t.Context(), config.Config{DatabaseURL: "postgres://u@127.0.0.1,192.0.2.9,no.such.host.invalid/x", Archives: u}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	want := []netip.Prefix{netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("192.0.2.9/32")}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
}
