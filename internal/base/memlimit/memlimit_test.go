package memlimit

import (
	"errors"
	"testing"
	"testing/fstest"

	"codehub/internal/base/setting"
)

func TestAutomaticLimit(t *testing.T) {
	t.Parallel()
	const meminfo = "MemTotal:        8388608 kB\nMemFree:         1 kB\n"
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"machine":              {map[string]string{"proc/meminfo": meminfo}, 4 << 30},
		"nothing known":        {nil, 0},
		"no limit":             {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 4 << 30},
		"version 2":            {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "1073741824\n"}, 768 << 20},
		"version 2, of parent": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "1073741824\n", "sys/fs/cgroup/a/b/memory.max": "4294967296\n"}, 768 << 20},
		"version 2, container": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/docker/x\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 768 << 20},
		"version 1":            {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "3:cpu:/z\n2:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648\n"}, 1536 << 20},
		"version 1, no limit":  {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "2:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, 4 << 30},
		"tiny":                 {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 64 << 20},
		"only the cgroup":      {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 768 << 20},
		"nonsense":             {map[string]string{"proc/meminfo": "MemTotal: x kB\n", "proc/self/cgroup": "nonsense\n\n::\n"}, 0},
	} {
		root := fstest.MapFS{}
		for file, text := range test.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := automatic(root); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "0": 0, "64m": 64 << 20, "2g": 2 << 30, " 2G ": 2 << 30, "134217728": 128 << 20, "131072k": 128 << 20,
		"1m": -1, "-1": -1, "lots": -1, "2gb": -1, "g": -1, "9999999999g": -1, "1.5g": -1} {
		s := Settings{MemoryLimit: text}
		err := s.Resolve()
		var p *setting.Problem
		if want < 0 && !errors.As(err, &p) || want >= 0 && (err != nil || s.Bytes != want) {
			t.Errorf("%q: %d, %v", text, s.Bytes, err)
		}
	}
}
