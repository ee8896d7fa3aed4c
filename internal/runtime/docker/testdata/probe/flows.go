package main

import (
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long a flow waits for an answer.
const patience = 3 * time.Second

// flows opens n flows at once. Kinds are tcp, udp, fragments (datagrams that do not
// fit into a packet) and icmp (echo requests, each with an id of its own).
func flows(args []string) (any, time.Duration) {
	kind, addr := args[0], args[1]
	n, _ := strconv.Atoi(args[2])
	hold, _ := time.ParseDuration(args[3])
	var answered atomic.Int64
	var wg sync.WaitGroup
	limit := make(chan struct{}, 512)
	for range n {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			if flow(kind, addr) {
				answered.Add(1)
			}
		})
	}
	wg.Wait()
	return map[string]int64{"answered": answered.Load()}, hold
}

// flow opens one flow, which stays open, and reports whether it was answered.
func flow(kind, addr string) bool {
	switch kind {
	case "tcp":
		conn, err := net.DialTimeout("tcp", addr, patience)
		if err == nil {
			keep(conn)
		}
		return err == nil
	case "udp":
		return echo(addr, []byte("x"))
	case "fragments":
		return echo(addr, []byte(strings.Repeat("x", 4000)))
	}
	return ping(addr)
}

var (
	mu   sync.Mutex
	kept []any // keeps descriptors from being closed by the garbage collector
)

func keep(v any) {
	mu.Lock()
	defer mu.Unlock()
	kept = append(kept, v)
}

func echo(addr string, message []byte) bool {
	conn, err := net.Dial("udp", addr)
	if err != nil {
		return false
	}
	keep(conn)
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(message); err != nil {
		return false
	}
	answer := make([]byte, len(message)+1)
	got, err := conn.Read(answer)
	return err == nil && got == len(message)
}

func ping(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err != nil {
		return false
	}
	file := os.NewFile(uintptr(fd), "ping")
	keep(file)
	to := &unix.SockaddrInet4{}
	copy(to.Addr[:], net.ParseIP(host).To4())
	wait := syscall.NsecToTimeval(int64(patience))
	_ = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait)
	// An echo request; the kernel fills in id and checksum.
	if err := unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1}, 0, to); err != nil {
		return false
	}
	got, _, err := unix.Recvfrom(fd, make([]byte, 64), 0)
	return err == nil && got == 8
}
