package main

import (
	"slices"
	"testing"
	"time"
)

func TestInTurnsChangesTheOrder(t *testing.T) {
	t.Parallel()
	var order []int
	if err := inTurns(3, 3, func(i int) error { order = append(order, i); return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 2, 1, 2, 0, 2, 0, 1}; !slices.Equal(order, want) {
		t.Errorf("the order is %v, want %v", order, want)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	if m := median([]time.Duration{9, 1, 5}); m != 5 {
		t.Errorf("median is %d", m)
	}
}
