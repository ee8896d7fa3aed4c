package service

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
)

// sizes computes Sizes.
func (d *Defaults) sizes() error {
	cpus, err := strconv.ParseFloat(d.CPUs, 64)
	if err != nil || !(cpus >= 0 && cpus <= 4096) {
		return setting.Invalid("CODEHUB_WORKSPACE_CPUS", fmt.Sprintf("%q is not a number of cores", d.CPUs), "give one like 2 or 0.5, or 0 for no limit")
	}
	memory, err := setting.Bytes(d.Memory)
	if err != nil || (memory != 0 && memory < 64<<20) {
		return setting.Invalid("CODEHUB_WORKSPACE_MEMORY", fmt.Sprintf("%q is not a size of at least 64m", d.Memory), "give one like 512m or 4g, or 0 for no limit")
	}
	disk, err := parseDisk(cmp.Or(d.Disk, "0"))
	if err != nil {
		return setting.Invalid("CODEHUB_WORKSPACE_DISK", err.Error(), "give one like 500m or 20g, or 0 for no limit")
	}
	d.Sizes.Default = workspace.Size{Name: workspace.DefaultSize, NanoCPUs: int64(cpus * 1e9), Memory: memory, Disk: disk}
	if d.Sizes.Offered, err = parseSizes(d.OfferedSizes, disk); err != nil {
		return setting.Invalid("CODEHUB_SIZES", err.Error(), "give sizes like small=1:2g,large=4:8g:50g, separated by commas")
	}
	return nil
}

// minDisk is the least limit of a home's disk space: that of a small file system.
const minDisk = 64 << 20

func parseDisk(text string) (int64, error) {
	n, err := setting.Bytes(text)
	if err != nil || n != 0 && n < minDisk {
		return 0, fmt.Errorf("%q is not a size of a disk of at least 64m", text)
	}
	return n, nil
}

// parseSizes reads sizes like small=1:2g,large=4:8g:50g: names with cores, memory and the disk
// space of the home. A size that does not name its disk space has that of the default size.
func parseSizes(text string, disk int64) ([]workspace.Size, error) {
	var sizes []workspace.Size
	names := map[string]bool{}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		s, err := parseSize(one, disk)
		if err != nil {
			return nil, err
		}
		if names[s.Name] {
			return nil, fmt.Errorf("%s is given twice", s.Name)
		}
		names[s.Name] = true
		sizes = append(sizes, s)
	}
	return sizes, nil
}

func parseSize(text string, disk int64) (workspace.Size, error) {
	name, limits, _ := strings.Cut(text, "=")
	parts := strings.Split(limits, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return workspace.Size{}, fmt.Errorf("%q is not NAME=CORES:MEMORY or NAME=CORES:MEMORY:DISK", text)
	}
	cpus, memory := parts[0], parts[1]
	switch {
	case !validSizeName(name):
		return workspace.Size{}, fmt.Errorf("%q is not a name of lowercase letters, digits and hyphens", name)
	case name == workspace.DefaultSize:
		return workspace.Size{}, fmt.Errorf("%s is the size that CODEHUB_WORKSPACE_CPUS and CODEHUB_WORKSPACE_MEMORY set", name)
	}
	s := workspace.Size{Name: name, Disk: disk}
	n, err := strconv.ParseFloat(cpus, 64)
	if err != nil || !(n >= 0.01 && n <= 4096) {
		return workspace.Size{}, fmt.Errorf("%q is not a number of cores from 0.01 to 4096", cpus)
	}
	s.NanoCPUs = int64(n * 1e9)
	if s.Memory, err = setting.Bytes(memory); err != nil || s.Memory < 64<<20 {
		return workspace.Size{}, fmt.Errorf("%q is not a size of memory of at least 64m", memory)
	}
	if len(parts) == 3 {
		if s.Disk, err = parseDisk(parts[2]); err != nil {
			return workspace.Size{}, err
		}
	}
	return s, nil
}

func validSizeName(s string) bool {
	return s != "" && len(s) <= workspace.MaxSizeName && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
}
