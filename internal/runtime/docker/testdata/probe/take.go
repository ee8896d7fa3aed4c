package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// take takes up to n of each of the kernel's resources that are counted for a user,
// in all containers together.
func take(args []string) (any, time.Duration) {
	n, _ := strconv.Atoi(args[0])
	hold, _ := time.ParseDuration(args[1])
	return map[string]int{
		"inotify instances": until(min(n, 1000), func(int) error { _, err := unix.InotifyInit1(unix.IN_CLOEXEC); return err }),
		"pending signals":   until(n, pend),
		"message queues":    until(min(n, 200), queue),
	}, hold
}

func until(n int, call func(int) error) int {
	for i := range n {
		if err := call(i); err != nil {
			return i
		}
	}
	return n
}

// pend creates a timer, for which the kernel reserves a pending signal.
func pend(int) error {
	var timer int32
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&timer)))
	if errno != 0 {
		return errno
	}
	return nil
}

// queue creates a message queue, for which the kernel reserves bytes.
func queue(i int) error {
	name, err := unix.BytePtrFromString("probe-" + strconv.Itoa(i))
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_CREAT|unix.O_RDWR, 0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// identity reports who this process is and whether it can write to its home.
func identity() map[string]any {
	out := map[string]any{"uid": os.Getuid(), "gid": os.Getgid(), "home": os.Getenv("HOME")}
	path := "/home/coder/probe-" + strconv.Itoa(os.Getpid())
	out["write"] = fmt.Sprint(os.WriteFile(path, nil, 0o600))
	_ = os.Remove(path)
	return out
}
