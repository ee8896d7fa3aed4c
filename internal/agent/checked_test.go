package agent

import (
	"math"
	"testing"
	"time"
)

func TestHostileUsage(t *testing.T) {
	t.Parallel()
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), math.MaxFloat64, -1} {
		u := Usage{CPUSeconds: x, CPULimit: x}.checked()
		for _, n := range []float64{u.CPUSeconds, u.CPULimit} {
			if !(n >= 0 && n <= maxProcessors*maxSeconds) {
				t.Errorf("%v became %v", x, n)
			}
		}
	}
	for _, since := range []int64{math.MinInt64, -1, maxSeconds + 1, math.MaxInt64} {
		u := Usage{Holders: []Holder{{What: "x", Since: since}}}.checked()
		if _, err := time.Unix(u.Holders[0].Since, 0).UTC().MarshalJSON(); err != nil {
			t.Errorf("%d: %v", since, err)
		}
	}
}
