package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

func median(d []time.Duration) time.Duration { return percentile(d, 50) }

func percentile(d []time.Duration, p int) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, len(s)*p/100)]
}

// medianBy returns the median of a number of each element.
func medianBy[T any](list []T, of func(T) float64) float64 {
	var values []float64
	for _, v := range list {
		values = append(values, of(v))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// inTurns calls measure for each of n subjects in every round, in another order each time.
func inTurns(rounds, n int, measure func(subject int) error) error {
	for round := range rounds {
		for i := range n {
			if err := measure((i + round) % n); err != nil {
				return err
			}
		}
	}
	return nil
}

// timesInTurns returns the times that each of these takes, measured in turns.
func timesInTurns(rounds int, measures ...func() (time.Duration, error)) ([][]time.Duration, error) {
	took := make([][]time.Duration, len(measures))
	return took, inTurns(rounds, len(measures), func(i int) error {
		d, err := measures[i]()
		took[i] = append(took[i], d)
		return err
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "MISSED"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/1e6) }

func ms1(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/1e6) }

// wake measures the time from a navigation to a stopped workspace to its page
// through the proxy, and the rival's create and start until /healthz answers.
func (b *bench) wake(ctx context.Context) error {
	id, err := b.api.create(ctx, "bench-wake", b.image)
	if err != nil {
		return err
	}
	volume, err := b.bare.volume(ctx, b.image)
	if err != nil {
		return err
	}
	took, err := timesInTurns(b.n, func() (time.Duration, error) {
		if err := b.api.stop(ctx, id); err != nil {
			return 0, err
		}
		start := time.Now()
		err := b.api.open(ctx, id)
		return time.Since(start), err
	}, func() (time.Duration, error) { return b.bare.start(ctx, b.image, volume) })
	if err != nil {
		return err
	}
	ours, bare := median(took[0]), median(took[1])
	fmt.Printf("wake: codehub %s, bare create+start %s, %s more (at most 150 ms), %.2f times as long (at most 1.2): %s\n",
		ms(ours), ms(bare), ms(ours-bare), float64(ours)/float64(bare), verdict(ours-bare <= 150*time.Millisecond && float64(ours) <= 1.2*float64(bare)))
	return nil
}

// images measures the time from the creation of a container until /healthz answers,
// for the default image and the slim one: the size of an image must not delay a start.
func (b *bench) images(ctx context.Context) error {
	var starts []func() (time.Duration, error)
	for _, name := range []string{b.image, env("CODEHUB_TEST_SLIM_IMAGE", "codehub/workspace-slim:latest")} {
		volume, err := b.bare.volume(ctx, name)
		if err != nil {
			return err
		}
		starts = append(starts, func() (time.Duration, error) { return b.bare.start(ctx, name, volume) })
	}
	took, err := timesInTurns(b.n, starts...)
	if err != nil {
		return err
	}
	more := median(took[0]) - median(took[1])
	fmt.Printf("images: default %s, slim %s, %s more (at most 50 ms): %s\n", ms(median(took[0])), ms(median(took[1])), ms(more), verdict(more <= 50*time.Millisecond))
	return nil
}

// create measures the creation of a workspace until RUNNING, and the rival's
// volume create and run.
func (b *bench) create(ctx context.Context) error {
	count := 0
	took, err := timesInTurns(b.n, func() (time.Duration, error) {
		count++
		start := time.Now()
		id, err := b.api.create(ctx, fmt.Sprintf("bench-create-%d", count), b.image)
		took := time.Since(start)
		if err == nil {
			b.api.remove(id)
		}
		return took, err
	}, func() (time.Duration, error) {
		start := time.Now()
		volume, err := b.bare.volume(ctx, "")
		if err != nil {
			return 0, err
		}
		made := time.Since(start)
		run, err := b.bare.start(ctx, b.image, volume)
		return made + run, err
	})
	if err != nil {
		return err
	}
	ours, bare := median(took[0]), median(took[1])
	fmt.Printf("create: codehub %s, bare volume create+run %s, %s more (at most 300 ms), %.2f times as long (at most 1.2): %s\n",
		ms(ours), ms(bare), ms(ours-bare), float64(ours)/float64(bare), verdict(ours-bare <= 300*time.Millisecond && float64(ours) <= 1.2*float64(bare)))
	return nil
}

// starts measures 50 parallel starts of the test image: with codehub, without it, and
// without it on an isolated network.
func (b *bench) starts(ctx context.Context) error {
	const count = 50
	ids := make([]string, count)
	volumes := make([]string, count)
	for i := range count {
		id, err := b.api.createStopped(ctx, fmt.Sprintf("bench-starts-%d", i), b.small)
		if err != nil {
			return err
		}
		ids[i] = id
		if volumes[i], err = b.bare.volume(ctx, b.small); err != nil {
			return err
		}
	}
	onNetwork, removeNetwork, err := b.bare.onNetwork(ctx)
	if err != nil {
		return err
	}
	defer removeNetwork()
	took, err := timesInTurns(max(1, b.n/3), func() (time.Duration, error) {
		start := time.Now()
		if err := b.api.setAll(ctx, ids, "RUNNING"); err != nil {
			return 0, err
		}
		took := time.Since(start)
		return took, b.api.setAll(ctx, ids, "STANDBY")
	}, func() (time.Duration, error) { return b.bare.startAll(ctx, b.small, volumes) },
		func() (time.Duration, error) { return onNetwork.startAll(ctx, b.small, volumes) })
	if err != nil {
		return err
	}
	ours, bare, isolated := median(took[0]), median(took[1]), median(took[2])
	ratio := float64(ours) / float64(bare)
	fmt.Printf("%d starts at once: codehub %s, bare parallel loop %s, %.2f times as long (at most 1.3): %s\n",
		count, ms(ours), ms(bare), ratio, verdict(ratio <= 1.3))
	ratio = float64(ours) / float64(isolated)
	fmt.Printf("  bare parallel loop on an isolated network like that of workspaces: %s, codehub %.2f times as long (at most 1.1): %s\n",
		ms(isolated), ratio, verdict(ratio <= 1.1))
	return nil
}
