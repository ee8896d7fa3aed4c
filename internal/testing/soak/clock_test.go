package soak

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// The clocks of a machine's database and server can be set independently of
// each other, of Docker and of the disk. Time namespaces do not help: they
// offset the monotonic clocks only.
//
// libfaketime moves the database's clock: a script that is mounted over
// PostgreSQL's binary preloads it. The server is static, so nothing can be
// preloaded into it; it is a build of codehub whose time.Now adds an offset.

// libfaketime is where Debian's package of that name puts it.
const libfaketime = "/usr/lib/*/faketime/libfaketime.so.1"

// makeClocksMovable prepares the machine, which must be off, for setClock.
func (m *machine) makeClocksMovable() error {
	libs, err := filepath.Glob(libfaketime)
	if err != nil || len(libs) == 0 {
		return fmt.Errorf("no %s: install the package libfaketime", libfaketime)
	}
	for _, name := range []string{"database", "server"} {
		if err := m.setClock(name, 0); err != nil {
			return err
		}
	}
	binaries, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(binaries) == 0 {
		return errors.New("no /usr/lib/postgresql/*/bin/postgres to move the clock of")
	}
	for i, postgres := range binaries {
		dir := filepath.Join(m.dir, fmt.Sprint("postgres", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		if out, err := exec.Command("cp", postgres, dir+"/postgres").CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", postgres, err, out)
		}
		// PostgreSQL measures waits with the monotonic clock, which must not jump.
		script := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec %s/postgres \"$@\"\n",
			libs[0], m.clockFile("database"), dir)
		if err := os.WriteFile(dir+"/wrapper", []byte(script), 0o755); err != nil {
			return err
		}
		m.binds = append(m.binds, dir+"/wrapper:"+postgres)
	}
	m.settings = append(m.settings, "SOAK_CLOCK_OFFSET="+m.clockFile("server"))
	return nil
}

func (m *machine) clockFile(name string) string { return filepath.Join(m.dir, "clock-"+name) }

// setClock sets a clock to an offset from the host's.
func (m *machine) setClock(name string, offset time.Duration) error {
	m.note("set the clock of the %s to an offset of %s", name, offset)
	seconds := int64(offset.Seconds())
	if name == "database" {
		// Renamed, so that libfaketime never reads half of the file.
		file := m.clockFile(name)
		if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%+d\n", seconds), 0o644); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}
	f, err := os.OpenFile(m.clockFile(name), os.O_CREATE|os.O_WRONLY, 0o644) // the server maps this file, so it must not be replaced
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(seconds)), 0)
	return errors.Join(err, f.Close())
}

// movableClockBinary builds codehub with a clock offset (SOAK_CLOCK_OFFSET).
var movableClockBinary = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	source := filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go")
	original, err := os.ReadFile(source)
	if err != nil {
		return "", err
	}
	const now = "\tsec, nsec, mono := runtimeNow()\n"
	_, rest, ok := bytes.Cut(original, []byte("\nfunc Now() Time {\n"+now))
	if !ok {
		return "", fmt.Errorf("%s has changed: adapt movableClockBinary", source)
	}
	head := original[:len(original)-len(rest)]
	dir, err := os.MkdirTemp(env.scratch, "clock-")
	if err != nil {
		return "", err
	}
	changed := string(head) + "\tsec += soakOffset()\n" + string(rest)
	if err := os.WriteFile(dir+"/time.go", []byte(changed), 0o644); err != nil {
		return "", err
	}
	if err := os.WriteFile(dir+"/soak.go", []byte(soakClock), 0o644); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		source: dir + "/time.go", filepath.Join(filepath.Dir(source), "soak_offset.go"): dir + "/soak.go",
	}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(dir+"/overlay.json", overlay, 0o644); err != nil {
		return "", err
	}
	server := filepath.Join(dir, "codehub")
	cmd := exec.Command("go", "build", "-overlay", dir+"/overlay.json", "-trimpath", "-ldflags", "-s -w", "-o", server, "./cmd/codehub")
	cmd.Dir = cmp.Or(os.Getenv("SOAK_CLOCK_SOURCE"), filepath.Join("..", "..", ".."))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build a server with a clock offset: %w: %s", err, out)
	}
	return server, nil
})

// soakClock is the file that the build adds to package time. It reads the offset
// in seconds from a mapped file, because the runtime calls Now where it may not
// make a system call.
const soakClock = `package time

import (
	"syscall"
	"unsafe"
)

var soakSeconds = new(int64)

func init() {
	name, ok := syscall.Getenv("SOAK_CLOCK_OFFSET")
	if !ok {
		return
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("SOAK_CLOCK_OFFSET: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("SOAK_CLOCK_OFFSET: " + err.Error())
	}
	soakSeconds = (*int64)(unsafe.Pointer(&b[0]))
}

func soakOffset() int64 { return *soakSeconds }
`
