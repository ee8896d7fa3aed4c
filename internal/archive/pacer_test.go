package archive

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Eight readers of a slow disk use at most a quarter of the time, and of a fast one all of it.
func TestPacerRestsAfterSlowAccesses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		access      time.Duration
		bytes       int64
		least, most time.Duration // for 20 accesses of each reader
	}{
		{"fast", 30 * time.Millisecond, 0, 600 * time.Millisecond, 600 * time.Millisecond},
		{"many bytes", 500 * time.Millisecond, 32 << 20, 10 * time.Second, 10 * time.Second},
		{"slow", 100 * time.Millisecond, 1 << 20, 7 * time.Second, 8 * time.Second},
		{"hanging", 10 * time.Second, 1 << 20, 230 * time.Second, 240 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, began := &Pacer{}, time.Now()
				var group sync.WaitGroup
				for range 8 {
					group.Go(func() {
						for range 20 {
							at := p.Begin(t.Context())
							time.Sleep(c.access)
							p.End(at, c.bytes)
						}
					})
				}
				group.Wait()
				if took := time.Since(began); took < c.least || took > c.most {
					t.Errorf("it took %s, want %s to %s", took, c.least, c.most)
				}
			})
		})
	}
}

func TestPacerEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &Pacer{}
		at := p.Begin(t.Context())
		time.Sleep(time.Second)
		p.End(at, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		began := time.Now()
		if p.Begin(ctx); time.Since(began) != time.Millisecond {
			t.Errorf("it waited %s after its context ended", time.Since(began))
		}
		var none *Pacer
		none.End(none.Begin(ctx), 0)
	})
}
