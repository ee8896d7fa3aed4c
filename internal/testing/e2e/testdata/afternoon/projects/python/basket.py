"""Adds up prices."""


def total(prices):
    """Returns the sum of the prices, in cents."""
    total = 0
    for price in prices:
        total += price
    return total


if __name__ == "__main__":
    print(total([250, 199, 51]))
