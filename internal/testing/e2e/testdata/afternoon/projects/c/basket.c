#include "basket.h"

/* Returns the sum of the prices, in cents. */
int total(const int *prices, int count) {
	int total = 0;
	for (int i = 0; i < count; i++) {
		total += prices[i];
	}
	return total;
}
