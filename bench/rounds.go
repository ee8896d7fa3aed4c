package main

import "slices"

// inTurns calls measure for each of n subjects in every round, in another order each time.
func inTurns(rounds, n int, measure func(subject int) error) error {
	for round := range rounds {
		order := make([]int, n)
		for i := range order {
			order[i] = (i + round) % n
		}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, i := range order {
			if err := measure(i); err != nil {
				return err
			}
		}
	}
	return nil
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
