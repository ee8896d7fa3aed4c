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

// The clocks of a machine's database and server can be moved apart from each
// other, from Docker's and from the disk's. A time namespace cannot do that: it
// moves the monotonic clocks alone.
//
// The database's by libfaketime, which is preloaded into PostgreSQL by a script
// that is mounted over its binary. The server's by a build of codehub whose
// time.Now adds an offset: it is static, nothing can be preloaded, and the
// kernel gives no other way for one process.

// libfaketime is where Debian's package of that name puts it.
const libfaketime = "/usr/lib/*/faketime/libfaketime.so.1"

// clocks makes a machine one whose clocks can be moved. It must be off.
func (m *machine) clocks() error {
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
		// PostgreSQL measures waits by the monotonic clock, which nothing sets.
		script := fmt.Sprintf("#!/bin/sh\nexport LD_PRELOAD=%s FAKETIME_TIMESTAMP_FILE=%s FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec %s/postgres \"$@\"\n",
			libs[0], m.clock("database"), dir)
		if err := os.WriteFile(dir+"/wrapper", []byte(script), 0o755); err != nil {
			return err
		}
		m.binds = append(m.binds, dir+"/wrapper:"+postgres)
	}
	m.settings = append(m.settings, "SOAK_CLOCK_OFFSET="+m.clock("server"))
	return nil
}

func (m *machine) clock(name string) string { return filepath.Join(m.dir, "clock-"+name) }

// setClock moves a clock away from the host's.
func (m *machine) setClock(name string, offset time.Duration) error {
	m.note("the clock of the %s is %s off", name, offset)
	seconds := int64(offset.Seconds())
	if name == "database" {
		// At once, or libfaketime finds half of it.
		file := m.clock(name)
		if err := os.WriteFile(file+".new", fmt.Appendf(nil, "%+d\n", seconds), 0o644); err != nil {
			return err
		}
		return os.Rename(file+".new", file)
	}
	f, err := os.OpenFile(m.clock(name), os.O_CREATE|os.O_WRONLY, 0o644) // mapped: never another file
	if err != nil {
		return err
	}
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(seconds)), 0)
	return errors.Join(err, f.Close())
}

// shiftable builds codehub with a clock that can be moved (SOAK_CLOCK_OFFSET).
var shiftable = sync.OnceValues(func() (string, error) {
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
		return "", fmt.Errorf("%s is not as this test knows it: adapt shiftable", source)
	}
	head := original[:len(original)-len(rest)]
	dir, err := os.MkdirTemp(env.scratch, "shiftable")
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
	cmd.Dir = cmp.Or(os.Getenv("SOAK_CLOCK_SOURCE"), filepath.Join("..", ".."))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build a server whose clock can be moved: %w: %s", err, out)
	}
	return server, nil
})

// soakClock is the part of package time that knows the offset, in seconds: eight
// bytes of a file that is mapped, as the runtime calls Now where no system call
// may be made.
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
