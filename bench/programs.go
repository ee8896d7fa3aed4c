package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// programTimes returns the processor time that the running processes have used so far, by the
// name of their program.
func programTimes() (map[string]time.Duration, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	times := map[string]time.Duration{}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it has ended
		}
		if used, err := cpuTime(pid); err == nil {
			times[string(bytes.TrimSpace(name))] += used
		}
	}
	return times, nil
}

// usedPer lists the programs that used most processor time between two calls of programTimes,
// for each of n, and the sum of all.
func usedPer(before, after map[string]time.Duration, n int) string {
	used, all := map[string]time.Duration{}, time.Duration(0)
	for name, t := range after {
		used[name] = max(0, t-before[name])
		all += used[name]
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int {
		return cmp.Or(cmp.Compare(used[b], used[a]), cmp.Compare(a, b))
	})
	parts := []string{ms1(all/time.Duration(n)) + " in all"}
	for _, name := range names[:min(6, len(names))] {
		parts = append(parts, fmt.Sprintf("%s %s", name, ms1(used[name]/time.Duration(n))))
	}
	return strings.Join(parts, ", ")
}
