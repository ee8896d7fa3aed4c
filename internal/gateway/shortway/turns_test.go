package shortway

import (
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"codehub/internal/testing/harness"
)

func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		var ends []func()
		for range cap(turns) {
			ends = append(ends, turns.begin(t.Context()))
		}
		begun := time.Now()
		begin := func(ctx context.Context) (got chan time.Duration) {
			got = make(chan time.Duration, 1)
			go func() {
				turns.begin(ctx)
				got <- time.Since(begun)
			}()
			synctest.Wait()
			return got
		}
		first := begin(t.Context())
		left, leave := context.WithCancel(t.Context())
		gone := begin(left)
		second := begin(t.Context())

		time.Sleep(time.Millisecond)
		leave()
		synctest.Wait()
		ends[0]()
		ends[0]() // has no effect
		synctest.Wait()
		if d := <-first; d != time.Millisecond {
			t.Errorf("the first that waits has its turn after %v", d)
		}
		if d := <-gone; d != time.Millisecond {
			t.Errorf("a connection that has ended waits for %v", d)
		}
		if d := <-second; d != turnTime {
			t.Errorf("the second that waits has its turn after %v, want %v, the longest turn", d, turnTime)
		}
		for _, end := range ends {
			end()
		}
		time.Sleep(turnTime)
		synctest.Wait()
		if len(turns) != 0 {
			t.Errorf("%d turns never end", len(turns))
		}

		for range cap(turns) {
			turns <- struct{}{} // turns that never end
		}
		begun = time.Now()
		if d := <-begin(t.Context()); d != turnWait {
			t.Errorf("without a free turn a request waits for %v, want %v", d, turnWait)
		}
	})
}

// Only the first request of a connection has a turn, which ends with the response.
func TestFirstRequestHasTurn(t *testing.T) {
	t.Parallel()
	var s *plainServer
	turns := make(chan int, 1)
	s = newPlainServer(t, true, func(http.ResponseWriter, *http.Request) { turns <- len(s.first) })
	harness.Eventually(t, "a first request has a turn", func() bool { // unless the machine takes longer than a turn
		c, r := s.dial()
		defer c.Close()
		var seen [2]int
		for i := range seen {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			seen[i] = <-turns
		}
		if seen[1] != 0 {
			t.Errorf("%d turns during the second request", seen[1])
		}
		return seen[0] == 1
	})
}
