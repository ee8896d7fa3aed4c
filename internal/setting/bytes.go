package setting

import (
	"errors"
	"strconv"
	"strings"
)

// Bytes parses a size like 512, 64k, 10m or 4g, or as in Kubernetes 64Ki, 10Mi, 4Gi or 1Ti.
func Bytes(s string) (int64, error) {
	s = strings.ToLower(strings.TrimSpace(s))
	if n := len(s); n > 2 && s[n-1] == 'i' && strings.IndexByte("kmgt", s[n-2]) >= 0 {
		s = s[:n-1]
	}
	unit := int64(1)
	if n := len(s); n > 1 {
		switch s[n-1] {
		case 'k':
			unit = 1 << 10
		case 'm':
			unit = 1 << 20
		case 'g':
			unit = 1 << 30
		case 't':
			unit = 1 << 40
		}
		if unit > 1 {
			s = s[:n-1]
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 || v > (1<<62)/unit {
		return 0, errors.New("not a size")
	}
	return v * unit, nil
}
