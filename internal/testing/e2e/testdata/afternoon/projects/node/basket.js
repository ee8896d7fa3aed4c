// total returns the sum of the prices, in cents.
exports.total = (prices) => {
  let total = 0
  for (const price of prices) {
    total += price
  }
  return total
}
