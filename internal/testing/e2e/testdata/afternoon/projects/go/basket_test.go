package basket

import "testing"

func TestTotal(t *testing.T) {
	if got := Total([]int{250, 199, 51}); got != 500 {
		t.Errorf("Total = %d, want 500", got)
	}
}
