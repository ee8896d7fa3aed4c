package inside

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"codehub/internal/runtime/agent"
)

// usage reports what the workspace uses.
func (s *Server) usage(w http.ResponseWriter, _ *http.Request) {
	u := readUsage("/sys/fs/cgroup")
	var disk unix.Statfs_t
	if err := unix.Statfs(s.cfg.Home, &disk); err == nil {
		u.DiskSize = int64(disk.Blocks) * disk.Bsize
		u.Disk = int64(disk.Blocks-disk.Bfree) * disk.Bsize
	}
	u.Holders = s.holders.List()
	s.environ() // a user may have installed gh or glab
	respond(w, http.StatusOK, u)
}

// noLimit is from where version 1 of cgroups means no limit: the largest number of
// bytes in whole pages.
const noLimit = 1 << 62

// readUsage reads the container's cgroup, of either version.
func readUsage(root string) agent.Usage {
	var u agent.Usage
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		u.CPUSeconds = float64(field(root, "cpu.stat", "usage_usec")) / 1e6
		quota, period, _ := strings.Cut(text(root, "cpu.max"), " ")
		u.CPULimit = ratio(quota, period)
		u.Memory = max(0, number(text(root, "memory.current"))-field(root, "memory.stat", "inactive_file"))
		u.MemoryLimit = number(text(root, "memory.max"))
		u.Processes = int(number(text(root, "pids.current")))
		return u
	}
	u.CPUSeconds = float64(number(text(root, "cpuacct/cpuacct.usage"))) / 1e9
	u.CPULimit = ratio(text(root, "cpu/cpu.cfs_quota_us"), text(root, "cpu/cpu.cfs_period_us"))
	u.Memory = max(0, number(text(root, "memory/memory.usage_in_bytes"))-field(root, "memory/memory.stat", "total_inactive_file"))
	if limit := number(text(root, "memory/memory.limit_in_bytes")); limit < noLimit {
		u.MemoryLimit = limit
	}
	u.Processes = int(number(text(root, "pids/pids.current")))
	return u
}

// text returns the file's content without the line's end; empty if it cannot be read.
func text(root, name string) string {
	raw, _ := os.ReadFile(filepath.Join(root, name))
	return strings.TrimSpace(string(raw))
}

// number returns 0 for what is not one, such as "max".
func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ratio returns a quota in processors; 0: none.
func ratio(quota, period string) float64 {
	q, p := number(quota), number(period)
	if q <= 0 || p <= 0 {
		return 0
	}
	return float64(q) / float64(p)
}

// field returns the number after the name in a file of names and numbers.
func field(root, file, name string) int64 {
	for line := range strings.Lines(text(root, file)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return number(strings.TrimSpace(value))
		}
	}
	return 0
}
