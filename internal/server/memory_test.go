package server

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"
)

// The server sets a memory limit by itself, unless the administrator sets one.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env []string
		ok  func(limit float64) bool
	}{
		"default": {nil, func(limit float64) bool { return limit >= 64<<20 && limit < 1<<50 }},
		"setting": {[]string{"CODEHUB_MEMORY_LIMIT=300m", "GOMEMLIMIT=400MiB"}, func(limit float64) bool { return limit == 300<<20 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serving(t, "", test.env...)
			res, err := http.Get("http://" + address(s) + "/metrics")
			try(t, err)
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			try(t, err)
			m := regexp.MustCompile(`(?m)^go_gc_gomemlimit_bytes (\S+)$`).FindSubmatch(b)
			if m == nil {
				t.Fatal("/metrics has no memory limit")
			}
			if limit, err := strconv.ParseFloat(string(m[1]), 64); err != nil || !test.ok(limit) {
				t.Errorf("the limit is %s", m[1])
			}
		})
	}
}
