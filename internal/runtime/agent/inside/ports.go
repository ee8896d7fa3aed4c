package inside

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"codehub/internal/runtime/agent"
)

// watchEvery is how often the ports are read while they are watched.
const watchEvery = time.Second

// listPorts answers with the listening ports, or reports them as they change to a
// conversation.
func (s *Server) listPorts(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		respond(w, http.StatusOK, agent.Ports{Ports: s.ports.scan()})
		return
	}
	conn, ok := s.converse(w, r)
	if !ok {
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, conn)
	}()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	enc := json.NewEncoder(conn)
	var last []agent.Port
	for first := true; ; first = false {
		if now := s.ports.scan(); first || !slices.Equal(now, last) {
			if enc.Encode(agent.Ports{Ports: now}) != nil {
				return
			}
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// portScanner reads the listening ports, and remembers whose they are: to find that
// out costs a look at every open file of every process.
type portScanner struct {
	hidden []int

	mu    sync.Mutex
	known map[uint64]listener // by inode of the socket
}

type listener struct {
	process string
	pid     int
	since   int64
}

// scan returns the listening ports, in order.
func (p *portScanner) scan() []agent.Port {
	p.mu.Lock()
	defer p.mu.Unlock()
	sockets := map[uint64]netip.AddrPort{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		maps.Copy(sockets, parseListeners(string(raw)))
	}
	known := map[uint64]listener{}
	missing := false
	for inode := range sockets {
		l, ok := p.known[inode]
		missing = missing || !ok
		known[inode] = l
	}
	if missing {
		owners := socketOwners(sockets)
		now := time.Now().Unix()
		for inode, l := range known {
			if l.since == 0 {
				l.since = now
			}
			if pid, ok := owners[inode]; ok {
				l.pid, l.process = pid, processName(pid)
			}
			known[inode] = l
		}
	}
	p.known = known
	return merge(sockets, known, p.hidden)
}

// resolver is where Docker's name server listens in a container, on a port of its own.
var resolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// merge makes one entry of all sockets of a port, without those of Docker.
func merge(sockets map[uint64]netip.AddrPort, known map[uint64]listener, hidden []int) []agent.Port {
	ports := map[int]agent.Port{}
	for _, inode := range slices.Sorted(maps.Keys(sockets)) {
		at := sockets[inode]
		number := int(at.Port())
		if slices.Contains(hidden, number) {
			continue
		}
		l := known[inode]
		if l.pid == 0 && at.Addr().Unmap() == resolver {
			continue
		}
		port, found := ports[number]
		if !found {
			port = agent.Port{Port: number, Local: true, Process: l.process, PID: l.pid, Since: l.since}
		}
		port.Local = port.Local && at.Addr().Unmap().IsLoopback()
		ports[number] = port
	}
	out := make([]agent.Port, 0, len(ports))
	for _, number := range slices.Sorted(maps.Keys(ports)) {
		out = append(out, ports[number])
	}
	return out
}

// parseListeners reads the listening sockets of /proc/net/tcp or tcp6, by inode.
func parseListeners(table string) map[uint64]netip.AddrPort {
	const listen = "0A"
	out := map[uint64]netip.AddrPort{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listen {
			continue
		}
		at, ok := parseAddress(f[1])
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if ok && err == nil {
			out[inode] = at
		}
	}
	return out
}

// parseAddress reads an address of these tables: words of 4 bytes in the machine's
// order, which is little-endian, and the port.
func parseAddress(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || portErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		slices.Reverse(raw[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(number)), ok
}

// socketOwners finds the processes of these sockets, as far as they belong to the
// workspace's user.
func socketOwners(sockets map[uint64]netip.AddrPort) map[uint64]int {
	out := map[uint64]int{}
	files, err := filepath.Glob("/proc/[0-9]*/fd")
	if err != nil {
		return out
	}
	for _, dir := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err != nil {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // it has ended, or is another user's
		}
		for _, e := range entries {
			link, err := os.Readlink(filepath.Join(dir, e.Name()))
			if err != nil {
				continue
			}
			text, ok := strings.CutPrefix(link, "socket:[")
			inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			if _, listens := sockets[inode]; ok && err == nil && listens {
				if first, found := out[inode]; !found || pid < first {
					out[inode] = pid
				}
			}
		}
	}
	return out
}

// maxProcessName limits the name of a process, in bytes.
const maxProcessName = 200

// processName returns the program and its arguments as a person would recognize them:
// "python3 -m http.server".
func processName(pid int) string {
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(raw) == 0 {
		return ""
	}
	args := strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
	args[0] = filepath.Base(args[0])
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.Join(args, " "), "?"))
	if len(name) > maxProcessName {
		name = strings.ToValidUTF8(name[:maxProcessName], "") + "…"
	}
	return name
}
