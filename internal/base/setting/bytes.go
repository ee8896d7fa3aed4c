package setting

import (
	"errors"
	"math"
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

// FormatBytes writes a size in the units of settings, such as "512 MiB", "4 GiB" or "17.6 GiB".
func FormatBytes(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, unit := float64(n), 0
	for rounded(f, unit) >= 1024 && unit < len(units)-1 {
		f /= 1024
		unit++
	}
	return strconv.FormatFloat(rounded(f, unit), 'f', -1, 64) + " " + units[unit]
}

// rounded keeps one decimal place of small numbers and of large units.
func rounded(f float64, unit int) float64 {
	if unit > 0 && f < 10 || unit > 2 {
		return math.Round(f*10) / 10
	}
	return math.Round(f)
}
