package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A storage job has a small processor share. For a fair comparison on a busy
// machine, the rival runs in a control group with the same share.

// newCgroup creates a control group next to that of a job's process, with the
// same processor share. It returns its folder, which the caller removes.
func newCgroup(pid int) (string, error) {
	group, err := cpuGroup(pid)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(group), fmt.Sprintf("codehub-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	for _, file := range []string{"cpu.weight", "cpu.shares"} { // version 2 and 1
		share, err := os.ReadFile(filepath.Join(group, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), share, 0o644)
		}
		return dir, err
	}
	return dir, fmt.Errorf("no processor share in %s", group)
}

// cpuGroup returns the folder of the control group that sets the processor
// share of a process.
func cpuGroup(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	paths := map[string]string{} // by controllers; "" is version 2
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			paths[f[1]] = f[2]
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	second := ""
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		// … 4: root, 5: mount point … "-", type, source, options
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 {
			continue
		}
		switch kind[0] {
		case "cgroup":
			for controllers, path := range paths {
				if slices.Contains(strings.Split(controllers, ","), "cpu") && slices.Contains(strings.Split(kind[2], ","), "cpu") {
					return filepath.Join(fields[4], path), nil
				}
			}
		case "cgroup2":
			second = fields[4]
		}
	}
	if path, ok := paths[""]; ok && second != "" {
		return filepath.Join(second, path), nil
	}
	return "", errors.New("no control group of the cpu controller")
}
