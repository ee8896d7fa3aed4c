// Package basket adds up prices.
package basket

// Total returns the sum of the prices, in cents.
func Total(prices []int) int {
	total := 0
	for _, price := range prices {
		total += price
	}
	return total
}
