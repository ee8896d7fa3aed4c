package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "MISSED"
}

func ms(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d)/1e6) }

// wake measures the time from a navigation to a stopped workspace to its page
// through the proxy, and the rival's create and start until /healthz answers.
func (b *bench) wake(ctx context.Context) error {
	id, err := b.api.create(ctx, "bench-wake", b.image)
	if err != nil {
		return err
	}
	defer b.api.remove(id)
	volume, err := b.bare.volume(ctx, b.image)
	if err != nil {
		return err
	}
	var ours, bare []time.Duration
	for range b.n {
		if err := b.api.stop(ctx, id); err != nil {
			return err
		}
		start := time.Now()
		if err := b.api.open(ctx, id); err != nil {
			return err
		}
		ours = append(ours, time.Since(start))

		d, err := b.bare.start(ctx, b.image, volume)
		if err != nil {
			return err
		}
		bare = append(bare, d)
	}
	more := median(ours) - median(bare)
	fmt.Printf("wake: codehub %s, bare create+start %s, %s more (at most 150 ms): %s\n",
		ms(median(ours)), ms(median(bare)), ms(more), verdict(more <= 150*time.Millisecond))
	return nil
}

// images measures the time from the creation of a container until /healthz answers,
// for the default image and the slim one: the size of an image must not delay a start.
func (b *bench) images(ctx context.Context) error {
	names := []string{b.image, b.slim}
	volumes := make([]string, len(names))
	took := make([][]time.Duration, len(names))
	for i, name := range names {
		var err error
		if volumes[i], err = b.bare.volume(ctx, name); err != nil {
			return err
		}
	}
	if err := inTurns(b.n, len(names), func(i int) error {
		d, err := b.bare.start(ctx, names[i], volumes[i])
		took[i] = append(took[i], d)
		return err
	}); err != nil {
		return err
	}
	more := median(took[0]) - median(took[1])
	fmt.Printf("images: default %s, slim %s, %s more (at most 50 ms): %s\n", ms(median(took[0])), ms(median(took[1])), ms(more), verdict(more <= 50*time.Millisecond))
	return nil
}

// create measures the creation of a workspace until RUNNING, and the rival's
// volume create and run.
func (b *bench) create(ctx context.Context) error {
	var ours, bare []time.Duration
	for i := range b.n {
		start := time.Now()
		id, err := b.api.create(ctx, fmt.Sprintf("bench-create-%d", i), b.image)
		if err != nil {
			return err
		}
		ours = append(ours, time.Since(start))
		b.api.remove(id)

		start = time.Now()
		volume, err := b.bare.volume(ctx, "")
		if err != nil {
			return err
		}
		if _, err := b.bare.start(ctx, b.image, volume); err != nil {
			return err
		}
		bare = append(bare, time.Since(start)-b.bare.cleanup)
	}
	more := median(ours) - median(bare)
	fmt.Printf("create: codehub %s, bare volume create+run %s, %s more (at most 300 ms): %s\n",
		ms(median(ours)), ms(median(bare)), ms(more), verdict(more <= 300*time.Millisecond))
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
	var ours, bare, isolated []time.Duration
	for range max(1, b.n/3) {
		start := time.Now()
		if err := b.api.startAll(ctx, ids); err != nil {
			return err
		}
		ours = append(ours, time.Since(start))
		if err := b.api.stopAll(ctx, ids); err != nil {
			return err
		}
		for rival, times := range map[*bareDocker]*[]time.Duration{b.bare: &bare, onNetwork: &isolated} {
			took, err := rival.startAll(ctx, b.small, volumes)
			if err != nil {
				return err
			}
			*times = append(*times, took)
		}
	}
	for _, id := range ids {
		b.api.remove(id)
	}
	ratio := float64(median(ours)) / float64(median(bare))
	fmt.Printf("%d starts at once: codehub %s, bare parallel loop %s, %.2f times as long (at most 1.3): %s\n",
		count, ms(median(ours)), ms(median(bare)), ratio, verdict(ratio <= 1.3))
	ratio = float64(median(ours)) / float64(median(isolated))
	fmt.Printf("  bare parallel loop on an isolated network like that of workspaces: %s, codehub %.2f times as long (at most 1.1): %s\n",
		ms(median(isolated)), ratio, verdict(ratio <= 1.1))
	return nil
}
