package service

import (
	"fmt"
	"strconv"
	"strings"

	"codehub/internal/setting"
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
	d.Sizes.Default = workspace.Size{Name: workspace.DefaultSize, NanoCPUs: int64(cpus * 1e9), Memory: memory}
	if d.Sizes.Offered, err = parseSizes(d.OfferedSizes); err != nil {
		return setting.Invalid("CODEHUB_SIZES", err.Error(), "give sizes like small=1:2g,large=4:8g, separated by commas")
	}
	return nil
}

// parseSizes reads sizes like small=1:2g,large=4:8g: names with cores and memory.
func parseSizes(text string) ([]workspace.Size, error) {
	var sizes []workspace.Size
	names := map[string]bool{}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		s, err := parseSize(one)
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

func parseSize(text string) (workspace.Size, error) {
	name, limits, _ := strings.Cut(text, "=")
	cpus, memory, both := strings.Cut(limits, ":")
	if !both {
		return workspace.Size{}, fmt.Errorf("%q is not NAME=CORES:MEMORY", text)
	}
	switch {
	case !validSizeName(name):
		return workspace.Size{}, fmt.Errorf("%q is not a name of lowercase letters, digits and hyphens", name)
	case name == workspace.DefaultSize:
		return workspace.Size{}, fmt.Errorf("%s is the size that CODEHUB_WORKSPACE_CPUS and CODEHUB_WORKSPACE_MEMORY set", name)
	}
	s := workspace.Size{Name: name}
	n, err := strconv.ParseFloat(cpus, 64)
	if err != nil || !(n >= 0.01 && n <= 4096) {
		return workspace.Size{}, fmt.Errorf("%q is not a number of cores from 0.01 to 4096", cpus)
	}
	s.NanoCPUs = int64(n * 1e9)
	if s.Memory, err = setting.Bytes(memory); err != nil || s.Memory < 64<<20 {
		return workspace.Size{}, fmt.Errorf("%q is not a size of memory of at least 64m", memory)
	}
	return s, nil
}

func validSizeName(s string) bool {
	return s != "" && len(s) <= workspace.MaxSizeName && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	})
}
