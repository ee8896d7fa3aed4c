#include <stdio.h>

#include "basket.h"

int main(void) {
	int prices[] = {250, 199, 51};
	int got = total(prices, 3);
	printf("total %d\n", got);
	return got != 500;
}
