package inside

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"codehub/internal/runtime/agent"
)

func TestReadUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  agent.Usage
	}{
		"version 2": {map[string]string{
			"cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
			"cpu.stat":           "usage_usec 12500000\nuser_usec 12000000\nsystem_usec 500000\nnr_periods 7\nnr_throttled 0\nthrottled_usec 0\n",
			"cpu.max":            "150000 100000\n",
			"memory.current":     "300000000\n",
			"memory.max":         "536870912\n",
			"memory.stat":        "anon 150000000\nfile 140000000\ninactive_anon 5\nactive_anon 6\ninactive_file 100000000\nactive_file 40000000\n",
			"pids.current":       "41\n",
		}, agent.Usage{CPUSeconds: 12.5, CPULimit: 1.5, Memory: 200_000_000, MemoryLimit: 512 << 20, Processes: 41}},
		"version 2 without limits": {map[string]string{
			"cgroup.controllers": "cpu memory pids\n",
			"cpu.stat":           "usage_usec 1\n",
			"cpu.max":            "max 100000\n",
			"memory.current":     "4096\n",
			"memory.max":         "max\n",
			"memory.stat":        "inactive_file 0\n",
			"pids.current":       "1\n",
		}, agent.Usage{CPUSeconds: 1e-6, Memory: 4096, Processes: 1}},
		// The files are read at different times.
		"version 2 with more inactive files than memory": {map[string]string{
			"cgroup.controllers": "memory\n",
			"memory.current":     "4096\n",
			"memory.stat":        "inactive_file 8192\n",
		}, agent.Usage{}},
		"version 2 without controllers": {map[string]string{
			"cgroup.controllers": "\n",
			"cpu.stat":           "usage_usec 2000000\n",
		}, agent.Usage{CPUSeconds: 2}},
		"version 1": {map[string]string{
			"cpuacct/cpuacct.usage":        "12500000000\n",
			"cpu/cpu.cfs_quota_us":         "25000\n",
			"cpu/cpu.cfs_period_us":        "50000\n",
			"memory/memory.usage_in_bytes": "300000000\n",
			"memory/memory.limit_in_bytes": "536870912\n",
			// The first of these names is of the group alone, without its children.
			"memory/memory.stat": "cache 1\ninactive_file 7\nhierarchical_memory_limit 536870912\ntotal_cache 1\ntotal_inactive_file 100000000\ntotal_active_file 2\n",
			"pids/pids.current":  "41\n",
		}, agent.Usage{CPUSeconds: 12.5, CPULimit: 0.5, Memory: 200_000_000, MemoryLimit: 512 << 20, Processes: 41}},
		"version 1 without limits": {map[string]string{
			"cpuacct/cpuacct.usage":        "1000\n",
			"cpu/cpu.cfs_quota_us":         "-1\n",
			"cpu/cpu.cfs_period_us":        "100000\n",
			"memory/memory.usage_in_bytes": "4096\n",
			"memory/memory.limit_in_bytes": "9223372036854771712\n",
			"memory/memory.stat":           "total_inactive_file 0\n",
			"pids/pids.current":            "1\n",
		}, agent.Usage{CPUSeconds: 1e-6, Memory: 4096, Processes: 1}},
		"no files": {nil, agent.Usage{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for name, content := range c.files {
				file := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := readUsage(root); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
