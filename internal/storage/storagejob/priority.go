package storagejob

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// lowerPriority gives the process the lowest priority. That of its disk requests follows from it. It is best
// effort: the job only takes longer or disturbs others more.
func lowerPriority() {
	// Linux has a priority for each thread, and new ones inherit it. One may have begun meanwhile.
	for range 2 {
		threads, _ := os.ReadDir("/proc/self/task")
		for _, t := range threads {
			if id, err := strconv.Atoi(t.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, 19)
			}
		}
	}
}
