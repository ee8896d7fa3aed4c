package wall

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A bridge is a private network of containers or virtual machines, whoever made
// it, unless it leads outside: a default route goes by it, or one of its ports
// is, or stands on, a device of the machine's own.

// outwardBridges lists the bridges of this host that lead outside.
func outwardBridges() ([]string, error) { return outwardBridgesIn("/sys/class/net", "/proc/net") }

func outwardBridgesIn(sys, proc string) ([]string, error) {
	entries, err := os.ReadDir(sys)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	routed, err := defaultRoutes(proc)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		name := e.Name()
		if !exists(filepath.Join(sys, name, "bridge")) {
			continue
		}
		if slices.Contains(routed, name) || standsOnDevice(sys, name, 0) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// maxLower bounds how deep interfaces are looked for under each other.
const maxLower = 8

// standsOnDevice reports whether the interface has hardware behind it, itself
// or by what it is made of: the ports of a bridge or a bond, the parent of a
// VLAN.
func standsOnDevice(sys, name string, depth int) bool {
	if exists(filepath.Join(sys, name, "device")) {
		return true
	}
	if depth == maxLower {
		return false
	}
	lower, err := filepath.Glob(filepath.Join(sys, name, "lower_*"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(lower, func(path string) bool {
		return standsOnDevice(sys, strings.TrimPrefix(filepath.Base(path), "lower_"), depth+1)
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// defaultRoutes lists the interfaces that a default route goes by.
func defaultRoutes(proc string) ([]string, error) {
	var out []string
	for _, table := range []struct {
		file         string
		iface        int // columns
		destination  int
		mask         int
		noMask, none string
	}{
		{"route", 0, 1, 7, "00000000", "00000000"},
		{"ipv6_route", 9, 0, 1, "00", strings.Repeat("0", 32)},
	} {
		raw, err := os.ReadFile(filepath.Join(proc, table.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6 here
		}
		if err != nil {
			return nil, fmt.Errorf("read routes: %w", err)
		}
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) <= max(table.iface, table.mask) || f[table.destination] != table.none || f[table.mask] != table.noMask {
				continue
			}
			if name := f[table.iface]; name != "lo" {
				out = append(out, name)
			}
		}
	}
	return out, nil
}
