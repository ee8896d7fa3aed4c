package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attack tries what a workspace's user can do to the agent, the process pid (the IDE) and the
// volumes, and returns what came of each.
func attack(args []string) (any, time.Duration) {
	ide, _ := strconv.Atoi(args[0])
	const agent, volume = "/opt/codehub/codehub", "/opt/codehub"
	out := map[string]string{
		// Before they are traced: see freeze.
		"SIGKILL to process 1":              result(syscall.Kill(1, syscall.SIGKILL)),
		"SIGSTOP to process 1":              result(syscall.Kill(1, syscall.SIGSTOP)),
		"write the executable":              result(os.WriteFile(agent, nil, 0o755)),
		"write it by /proc/1/root":          result(os.WriteFile("/proc/1/root"+agent, nil, 0o755)),
		"write it by /proc/1/exe":           result(os.WriteFile("/proc/1/exe", nil, 0o755)),
		"remove the executable":             result(os.Remove(agent)),
		"rename the executable":             result(os.Rename(agent, agent+"2")),
		"make a file on its volume":         result(os.WriteFile(volume+"/more", nil, 0o755)),
		"make a link on its volume":         result(os.Symlink("/tmp", volume+"/link")),
		"change the executable's mode":      result(os.Chmod(agent, 0o777)),
		"change the executable's owner":     result(os.Chown(agent, os.Getuid(), os.Getgid())),
		"mount over the volume":             result(unix.Mount("/tmp", volume, "", unix.MS_BIND, "")),
		"make the volume writable":          result(unix.Mount("", volume, "", unix.MS_REMOUNT|unix.MS_BIND, "")),
		"unmount the volume":                result(unix.Unmount(volume, unix.MNT_DETACH)),
		"enter the namespaces of process 1": result(enter("/proc/1/ns/mnt")),
		"make a namespace":                  result(unix.Unshare(unix.CLONE_NEWUSER | unix.CLONE_NEWNS)),
		"read the disks":                    result(readDisks()),
		"Docker's socket":                   result(existing("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock")),
		"trace process 1":                   result(seize(1)),
		"trace the IDE":                     result(seize(ide)),
		"the memory of process 1":           result(openMemory(1)),
	}
	for _, address := range []string{":61080", "127.0.0.1:61080", "0.0.0.0:61080", ownAddress() + ":61080"} {
		l, err := net.Listen("tcp", address)
		if err == nil {
			l.Close()
		}
		out["listen on the agent's port of "+kind(address)] = result(err)
	}
	return out, 0
}

func kind(address string) string {
	switch host, _, _ := net.SplitHostPort(address); host {
	case "":
		return "all addresses"
	case "127.0.0.1":
		return "loopback"
	case "0.0.0.0":
		return "all IPv4 addresses"
	}
	return "its own address"
}

// result is an error without what differs from run to run.
func result(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func enter(namespace string) error {
	fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Setns(fd, 0)
}

func readDisks() error {
	disks, _ := filepath.Glob("/dev/[shvn][dv]*")
	for _, disk := range disks {
		f, err := os.Open(disk)
		if err == nil {
			f.Close()
			return errors.New("opened " + disk)
		}
	}
	return syscall.ENOENT
}

func existing(paths ...string) error {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return errors.New(path)
		}
	}
	return syscall.ENOENT
}

// seize begins to trace a process, without stopping it. The end of this one ends that.
func seize(pid int) error {
	runtime.LockOSThread()
	const ptraceSeize = 0x4206
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceSeize, uintptr(pid), 0, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func openMemory(pid int) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err
}

func ownAddress() string {
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && n.IP.To4() != nil {
			return n.IP.String()
		}
	}
	return "127.0.0.2"
}

// environs returns the environments of all processes, as far as they can be read.
func environs([]string) (any, time.Duration) {
	var all bytes.Buffer
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		b, _ := os.ReadFile(file)
		all.Write(b)
	}
	return all.String(), 0
}

// send sends a signal and returns its error.
func send(args []string) (any, time.Duration) {
	pid, _ := strconv.Atoi(args[0])
	return result(syscall.Kill(pid, unix.SignalNum("SIG"+args[1]))), 0
}

// connect sends a request to an address with a secret, and returns the first line of the answer.
func connect(args []string) (any, time.Duration) {
	conn, err := net.DialTimeout("tcp", args[0], time.Second)
	if err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "timeout", 0
		}
		return result(err), 0
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/hello HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n", args[1])
	line := make([]byte, len("HTTP/1.1 401"))
	_, err = io.ReadFull(conn, line)
	return fmt.Sprint(string(line), " ", result(err)), 0
}

// forge replaces the socket of commands that hold a workspace awake: it removes it and the folder,
// and leaves in its place what the kind says.
func forge(args []string) (any, time.Duration) {
	const dir = "/tmp/.codehub"
	err := os.RemoveAll(dir)
	switch args[0] {
	case "none":
	case "file":
		err = errors.Join(err, os.WriteFile(dir, []byte("x"), 0o600))
	case "link":
		err = errors.Join(err, os.Mkdir(dir, 0o700), os.Symlink("/opt/codehub/codehub", dir+"/busy.sock"))
	case "endless":
		err = errors.Join(err, os.Mkdir(dir, 0o700), exec.Command(os.Args[0], "chatter", dir+"/busy.sock").Start())
	}
	return result(err), 0
}

// chatter answers on a socket without end.
func chatter(args []string) (any, time.Duration) {
	l, err := net.Listen("unix", args[0])
	if err != nil {
		return result(err), 0
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return result(err), 0
		}
		go func() {
			for err == nil {
				_, err = c.Write(make([]byte, 64<<10))
			}
		}()
	}
}

// breed starts processes until no more can be started, and again when one has ended, for ever.
func breed(args []string) (any, time.Duration) {
	hold, _ := time.ParseDuration(args[0])
	n, last := 0, ""
	for end := time.Now().Add(hold); time.Now().Before(end); {
		var attr syscall.ProcAttr
		if _, err := syscall.ForkExec(os.Args[0], []string{os.Args[0], "linger", args[0]}, &attr); err != nil {
			last = result(err)
			time.Sleep(time.Millisecond)
			continue
		}
		n++
	}
	return fmt.Sprint(n > 0, " ", last), 0
}

// fill writes to a file in a folder until that fails, and returns the error.
func fill(args []string) (any, time.Duration) {
	f, err := os.Create(filepath.Join(args[0], "filled"))
	for b := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(b)
	}
	return result(err), 0
}

// freeze stops process 1, once this process has ended: the kernel keeps no signals from a process
// that is traced.
func freeze([]string) (any, time.Duration) {
	if err := seize(1); err != nil {
		return result(err), 0
	}
	return result(syscall.Kill(1, syscall.SIGSTOP)), 0
}
