package main

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func try(number uintptr, args ...uintptr) string {
	var a [6]uintptr
	copy(a[:], args)
	r, _, errno := syscall.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return unix.ErrnoName(errno)
	}
	switch number {
	case unix.SYS_SOCKET, unix.SYS_MEMFD_CREATE, unix.SYS_INOTIFY_INIT1, unix.SYS_IO_URING_SETUP, unix.SYS_USERFAULTFD,
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIDFD_OPEN:
		syscall.Close(int(r))
	}
	return "ok"
}

// unknown takes the error of a system call that Docker's library does not know for that of one that is
// refused. Whether the kernel has it makes no difference.
func unknown(result string) string {
	if result == "ENOSYS" {
		return "EPERM"
	}
	return result
}

// calls names each attempt and what came of it: "ok", or an error's name.
func calls() map[string]string {
	zeros := make([]byte, 256)
	zero := uintptr(unsafe.Pointer(&zeros[0]))
	name, _ := unix.BytePtrFromString("codehub")
	text := uintptr(unsafe.Pointer(name))
	kind, _ := unix.BytePtrFromString("user")
	pair := make([]int32, 2)
	pipe := make([]int, 2)
	if err := unix.Pipe2(pipe, unix.O_CLOEXEC); err != nil {
		pipe = []int{-1, -1}
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	out := map[string]string{
		"socket vsock":     try(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"socket alg":       try(unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0),
		"socket sctp":      try(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP),
		"socket bluetooth": try(unix.SYS_SOCKET, unix.AF_BLUETOOTH, unix.SOCK_RAW, 0),
		"socketpair tipc":  try(unix.SYS_SOCKETPAIR, unix.AF_TIPC, unix.SOCK_SEQPACKET, 0, uintptr(unsafe.Pointer(&pair[0]))),
		"io_uring":         try(unix.SYS_IO_URING_SETUP, 8, zero),
		"keyctl":           try(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 0),
		"add_key":          try(unix.SYS_ADD_KEY, uintptr(unsafe.Pointer(kind)), text, text, 4, ^uintptr(3)),
		"userfaultfd":      try(unix.SYS_USERFAULTFD, 1),
		"bpf":              try(unix.SYS_BPF, 0, zero, 64),
		"perf_event_open":  try(unix.SYS_PERF_EVENT_OPEN, zero, 0, ^uintptr(0), ^uintptr(0), 0),
		"unshare user":     try(unix.SYS_UNSHARE, unix.CLONE_NEWUSER),
		"clone user":       cloned(unix.CLONE_NEWUSER),
		"clone3":           try(unix.SYS_CLONE3, zero, 0),
		"executable data":  try(unix.SYS_PERSONALITY, 0x0400000),
		"get_mempolicy":    try(unix.SYS_GET_MEMPOLICY, 0, 0, 0, 0, 0),
		"quotactl":         try(unix.SYS_QUOTACTL, 0x80000100, 0, 0, 0),
		"chroot":           try(unix.SYS_CHROOT, text),

		"socket tcp":            try(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0),
		"socket udp6":           try(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP),
		"socket ping":           try(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		"socket unix":           try(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0),
		"socket netlink":        try(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		"socketpair":            try(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(&pair[0]))),
		"memfd_create":          try(unix.SYS_MEMFD_CREATE, text, 0),
		"inotify":               try(unix.SYS_INOTIFY_INIT1, 0),
		"pidfd_open":            try(unix.SYS_PIDFD_OPEN, uintptr(os.Getpid()), 0),
		"fixed addresses":       try(unix.SYS_PERSONALITY, 0x0040000),
		"ptrace":                traced(),
		"terminal":              terminal(),
		"FIONREAD":              try(unix.SYS_IOCTL, uintptr(pipe[0]), 0x541b, zero),
		"FIOCLEX":               try(unix.SYS_IOCTL, uintptr(pipe[0]), 0x5451),
		"FICLONE":               try(unix.SYS_IOCTL, ^uintptr(0), 0x40049409, 0),
		"FIDEDUPERANGE":         try(unix.SYS_IOCTL, ^uintptr(0), 0xc0189436, zero),
		"make subvolume":        try(unix.SYS_IOCTL, ^uintptr(0), 0x5000940e, zero),
		"make subvolume, as v2": try(unix.SYS_IOCTL, ^uintptr(0), 0x50009418, zero),
		"FS_IOC_GETFLAGS":       try(unix.SYS_IOCTL, ^uintptr(0), unix.FS_IOC_GETFLAGS, zero),
		"FS_IOC_SETFLAGS":       try(unix.SYS_IOCTL, ^uintptr(0), unix.FS_IOC_SETFLAGS, zero),
		"FS_IOC_FSGETXATTR":     try(unix.SYS_IOCTL, ^uintptr(0), 0x801c581f, zero),
		"FS_IOC_FSSETXATTR":     try(unix.SYS_IOCTL, ^uintptr(0), 0x401c5820, zero),
		"file_setattr":          unknown(try(unix.SYS_FILE_SETATTR, ^uintptr(0), text, zero, 24, 0)),
		"clone":                 cloned(0),
	}
	for name, attempt := range perArch() {
		out[name] = attempt()
	}
	return out
}

// terminal opens a terminal and sets its size.
func terminal() string {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open: " + errorName(err)
	}
	defer unix.Close(fd)
	if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
		return "attributes: " + errorName(err)
	}
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPTN); err != nil {
		return "number: " + errorName(err)
	}
	return errorName(unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
}

// cloned starts a process with these flags of clone.
func cloned(flags uintptr) string {
	cmd := exec.Command(self(), "traced")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	return errorName(cmd.Run())
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func errorName(err error) string {
	if err == nil {
		return "ok"
	}
	for e := err; e != nil; {
		if errno, ok := e.(syscall.Errno); ok {
			return unix.ErrnoName(errno)
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	return strings.TrimSpace(err.Error())
}

// traced does what a debugger does: it starts a process, stops it at its first
// instruction, reads its registers and memory, and lets it go on.
func traced() string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(self(), "traced")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return errorName(err)
	}
	pid := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return errorName(err)
	}
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
		return "registers: " + errorName(err)
	}
	word := make([]byte, 8)
	if _, err := syscall.PtracePeekData(pid, uintptr(regs.PC()), word); err != nil {
		return "memory: " + errorName(err)
	}
	copied := make([]byte, 8)
	local := []unix.Iovec{{Base: &copied[0]}}
	local[0].SetLen(len(copied))
	if _, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(regs.PC()), Len: len(copied)}}, 0); err != nil {
		return "process_vm_readv: " + errorName(err)
	}
	if err := syscall.PtraceDetach(pid); err != nil {
		return "detach: " + errorName(err)
	}
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return errorName(err)
	}
	return "ok"
}
