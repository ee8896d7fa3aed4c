package redistest

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var dir string
	t.Run("server", func(t *testing.T) {
		s := New(t, "--requirepass", "p@ss word")
		dir = s.dir
		opts, err := redis.ParseURL(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		opts.MaxRetries, opts.ReadTimeout, opts.ContextTimeoutEnabled = -1, patience, true
		c := redis.NewClient(opts)
		defer c.Close()
		there := func() bool {
			t.Helper()
			n, err := c.Exists(ctx, "k").Result()
			if err != nil {
				t.Fatal(err)
			}
			return n == 1
		}
		s.Do("SET", "k", "v")
		if !there() {
			t.Error("what was set is not there")
		}
		s.Flush()
		if there() {
			t.Error("it is there after a flush")
		}
		s.Do("SET", "k", "v")
		s.Freeze()
		bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := c.Ping(bounded).Err(); !os.IsTimeout(err) {
			t.Errorf("a frozen server says %v", err)
		}
		cancel()
		s.Thaw()
		if !there() {
			t.Error("it is not there after a freeze")
		}
		s.Restart()
		if err := c.Ping(ctx).Err(); err != nil { // a connection from before
			_ = c.Ping(ctx).Err()
		}
		if there() {
			t.Error("it is there after a restart")
		}
		s.Freeze() // and is ended all the same
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the server's folder: %v", err)
	}
}
