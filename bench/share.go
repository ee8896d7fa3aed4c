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

// A storage job gives way to whatever else wants the processors, and a rival
// that does not would win on any machine that is a little busy. So the rival
// runs in a control group like a job's, beside it.

// shareOf makes a control group with the processors' share of a job's process.
// It returns its folder, which the caller removes.
func shareOf(pid int) (string, error) {
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
	return dir, fmt.Errorf("no share of the processors in %s", group)
}

// cpuGroup is the folder of the control group that says what share of the
// processors a process has.
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
	return "", errors.New("no control group for the processors")
}
