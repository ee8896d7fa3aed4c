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

// A bridge is a private network of containers or virtual machines unless it has an
// uplink: it carries a default route, or one of its ports is or uses a physical
// device of the host.

// uplinkBridges lists the bridges of this host that have an uplink.
func uplinkBridges() ([]string, error) { return uplinkBridgesIn("/sys/class/net", "/proc/net") }

func uplinkBridgesIn(sys, proc string) ([]string, error) {
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
		if slices.Contains(routed, name) || hasHardware(sys, name, 0) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// maxLower limits the depth of stacked interfaces.
const maxLower = 8

// hasHardware reports whether the interface is physical, or is built on a physical
// one: the ports of a bridge or a bond, the parent of a VLAN.
func hasHardware(sys, name string, depth int) bool {
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
		return hasHardware(sys, strings.TrimPrefix(filepath.Base(path), "lower_"), depth+1)
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// defaultRoutes lists the interfaces that carry a default route.
func defaultRoutes(proc string) ([]string, error) {
	var out []string
	for _, table := range []struct {
		file         string
		iface        int // column numbers
		destination  int
		mask         int
		noMask, none string
	}{
		{"route", 0, 1, 7, "00000000", "00000000"},
		{"ipv6_route", 9, 0, 1, "00", strings.Repeat("0", 32)},
	} {
		raw, err := os.ReadFile(filepath.Join(proc, table.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6 on this host
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
