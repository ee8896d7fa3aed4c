package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Clock is a database's clock that a test can set, for the sessions of DSN: they use
// other functions clock_timestamp() and now(). Defaults of columns keep the real
// clock.
type Clock struct {
	DSN string

	t    testing.TB
	real string
}

// NewClock adds a settable clock to a database.
func NewClock(t testing.TB, dsn string) *Clock {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", "test_clock,pg_catalog,public")
	u.RawQuery = q.Encode()
	c := &Clock{DSN: u.String(), t: t, real: dsn}
	c.exec(`CREATE SCHEMA test_clock;
		CREATE TABLE test_clock.ahead (by interval NOT NULL);
		INSERT INTO test_clock.ahead VALUES ('0');
		CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
			'SELECT pg_catalog.clock_timestamp() + by FROM test_clock.ahead';
		CREATE FUNCTION test_clock.now() RETURNS timestamptz LANGUAGE sql STABLE AS
			'SELECT pg_catalog.now() + by FROM test_clock.ahead'`)
	return c
}

// Set sets the clock ahead of the real one by d.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	c.exec(fmt.Sprintf(`UPDATE test_clock.ahead SET by = make_interval(secs => %f)`, ahead.Seconds()))
}

func (c *Clock) exec(sql string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.real)
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		c.t.Fatal(err)
	}
}
