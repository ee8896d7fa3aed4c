package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/soak/disk"
)

// Paths on the machine's only disk.
const (
	dockerRoot = srv + "/docker"
	dataDir    = srv + "/codehub"
	archiveDir = srv + "/archives"
)

const (
	adminPassword = "correct horse battery"
	bootPatience  = 3 * time.Minute
)

// machine is a simulated computer: a disk whose power can be cut, and on it a
// separate Docker, database, archives and server. Processes, mounts and network
// are in namespaces, so that the host is not affected and one kill ends them
// all.
type machine struct {
	dir      string // on the host, with the disk's image and Docker's socket
	settings []string
	binary   string
	binds    []string // bind mounts, as source:target

	disk *disk.Disk
	ns   *namespace

	daemon, server *process

	listener  net.Listener // forwards to the present server
	currentNS atomic.Pointer[namespace]

	docker *client.Client
	api    *codehub.Client
	url    string
	token  string

	log *os.File // of Docker and the server
}

// process is one command inside the machine.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// wait waits for the end of the process and kills it if it does not end in
// time.
func (p *process) wait(patience time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s did not end within %s", p.cmd.Path, patience)
	}
}

// newMachine creates a machine that is off, with a copy of image as its disk.
// Its log is appended to the named file.
func newMachine(image, log string, settings ...string) (*machine, error) {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return nil, err
	}
	m := &machine{settings: settings, binary: env.binary}
	var err error
	if m.log, err = os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return nil, err
	}
	if m.dir, err = os.MkdirTemp(env.scratch, "m"); err != nil {
		return nil, err
	}
	if err := os.Chmod(m.dir, 0o755); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cp", "--sparse=always", image, m.image()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("copy the disk: %w: %s", err, out)
	}
	if m.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	m.url = fmt.Sprintf("http://localhost:%d", m.listener.Addr().(*net.TCPAddr).Port)
	go m.forward()
	if m.docker, err = client.New(client.WithHost("unix://" + m.socket())); err != nil {
		return nil, err
	}
	machines.Store(m, nil)
	return m, nil
}

func (m *machine) image() string  { return filepath.Join(m.dir, "image") }
func (m *machine) socket() string { return filepath.Join(m.dir, "d.sock") }

// path returns the host's path of a path in the machine.
func (m *machine) path(p string) string { return m.ns.path(p) }

func (m *machine) note(format string, args ...any) {
	fmt.Fprintf(m.log, "%s soak: %s\n", time.Now().UTC().Format("15:04:05.000"), fmt.Sprintf(format, args...))
}

// powerOn attaches and mounts the disk without starting Docker and the server.
func (m *machine) powerOn() error {
	m.note("power on")
	var err error
	if m.disk, err = disk.Attach(m.image(), m.dir); err != nil {
		return err
	}
	if m.ns, err = newNamespace(m.disk.Device, m.binds); err != nil {
		return errors.Join(err, m.disk.Detach())
	}
	m.currentNS.Store(m.ns)
	return nil
}

// boot powers the machine on and starts Docker and the server.
func (m *machine) boot(ctx context.Context) error {
	if err := m.powerOn(); err != nil {
		return err
	}
	if err := m.startDocker(ctx); err != nil {
		return err
	}
	return m.startServer(ctx)
}

// powerOff cuts the power of the disk. The processes run until end, but their
// writes fail.
func (m *machine) powerOff(loss disk.Loss, rng *rand.Rand) error {
	unflushed, lost, err := m.disk.PowerOff(loss, rng)
	m.note("power cut: %d page writes not flushed, %d of them lost (%s)", unflushed, lost, loss)
	return err
}

// shutDown stops the server and Docker and ends the machine.
func (m *machine) shutDown() error {
	m.note("shut down")
	err := m.stopServer(syscall.SIGTERM)
	err = errors.Join(err, m.stopDocker(syscall.SIGTERM))
	// A killed server leaves its PostgreSQL running.
	_ = m.run(context.Background(), io.Discard, "pkill", "-INT", "-x", "postgres")
	return errors.Join(err, m.end())
}

// end kills all processes of the machine, waits for them and detaches the disk.
func (m *machine) end() error {
	if m.ns == nil {
		return nil
	}
	m.currentNS.Store(nil)
	err := m.ns.end()
	m.ns = nil
	for _, p := range []*process{m.server, m.daemon} {
		if p != nil {
			<-p.done
		}
	}
	m.server, m.daemon = nil, nil
	runtime.GC() // closes files of homes that a failed read or write left open
	err = errors.Join(err, m.disk.Detach())
	m.disk = nil
	removeControlGroups(m.cgroup())
	return err
}

// close ends the machine and removes its disk.
func (m *machine) close() {
	if _, open := machines.LoadAndDelete(m); !open {
		return
	}
	if m.ns != nil {
		_, _, _ = m.disk.PowerOff(disk.LoseNone, nil)
		if err := m.end(); err != nil {
			m.note("close: %v", err)
		}
	}
	_ = m.listener.Close()
	_ = m.docker.Close()
	_ = m.log.Close()
	_ = os.RemoveAll(m.dir)
}

// cgroup is the parent control group of the machine's containers. It is the
// host's, and stays when the machine's processes are killed.
func (m *machine) cgroup() string { return "codehub-soak-" + filepath.Base(m.dir) }

func removeControlGroups(parent string) {
	tops, _ := filepath.Glob("/sys/fs/cgroup/*/" + parent)
	for _, top := range append(tops, "/sys/fs/cgroup/"+parent) {
		var folders []string
		_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				folders = append(folders, path)
			}
			return nil
		})
		for i := len(folders) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(folders[i])
		}
	}
}

func (m *machine) spawn(environ []string, name string, args ...string) (*process, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = environ
	cmd.Stdout, cmd.Stderr = m.log, m.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.ns.startCommand(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// run runs a command in the machine and waits for its end.
func (m *machine) run(ctx context.Context, out io.Writer, name string, args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, &stderr
	if err := m.ns.startCommand(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, stderr.Bytes())
	}
	return nil
}

func (m *machine) startDocker(ctx context.Context) error {
	var err error
	// Docker's state and its containerd are in /run, which a power cut
	// empties.
	m.daemon, err = m.spawn(os.Environ(), "prlimit", "--nofile=20000", "dockerd", "--host", "unix://"+m.socket(), "--data-root", dockerRoot,
		"--exec-root", "/run/docker", "--pidfile", "/run/docker.pid", "--cgroup-parent", "/"+m.cgroup())
	if err != nil {
		return err
	}
	return m.await(ctx, m.daemon, "Docker", func(ctx context.Context) error {
		_, err := m.docker.Ping(ctx, client.PingOptions{})
		return err
	})
}

// await waits until check succeeds. It returns an error if the process ends.
func (m *machine) await(ctx context.Context, p *process, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	for {
		bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := check(bounded)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended while it started: %w", what, p.err)
		case <-ctx.Done():
			return fmt.Errorf("%s did not start: %w (%w)", what, err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *machine) stopDocker(s syscall.Signal) error { return m.stop(&m.daemon, "Docker", s) }
func (m *machine) stopServer(s syscall.Signal) error { return m.stop(&m.server, "server", s) }

func (m *machine) stop(p **process, what string, s syscall.Signal) error {
	if *p == nil {
		return nil
	}
	m.note("%s: %s", what, s)
	(*p).signal(s)
	err := (*p).wait(90 * time.Second)
	*p = nil
	return err
}

// serverEnv returns the environment of the server and its commands.
func (m *machine) serverEnv() []string {
	port := m.listener.Addr().(*net.TCPAddr).Port
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=/root", "DOCKER_HOST=unix://" + m.socket(),
		fmt.Sprintf("CODEHUB_LISTEN=127.0.0.1:%d", port), "CODEHUB_URL=" + m.url,
		"CODEHUB_DATA_DIR=" + dataDir, "CODEHUB_ARCHIVE_URL=file://" + archiveDir,
		"CODEHUB_ADMIN_PASSWORD=" + adminPassword, "CODEHUB_DEFAULT_IMAGE=" + env.image, "CODEHUB_LOG_LEVEL=debug",
		"TTL_STANDBY_SECONDS=0", "TTL_ARCHIVE_SECONDS=0", "MAX_RUNNING_PER_USER=0", "CODEHUB_MAX_WORKSPACES_PER_USER=0",
		"CODEHUB_WORKSPACE_MEMORY=256m", "CODEHUB_WORKSPACE_CPUS=0", "COORDINATOR_IDLE_INTERVAL=2s",
	}, m.settings...)
}

func (m *machine) launchServer() error {
	var err error
	m.server, err = m.spawn(m.serverEnv(), m.binary, "serve")
	return err
}

// startServer starts the server, waits until it is ready, and logs in at the
// first start.
func (m *machine) startServer(ctx context.Context) error {
	if err := m.launchServer(); err != nil {
		return err
	}
	return m.awaitServer(ctx)
}

func (m *machine) awaitServer(ctx context.Context) error {
	if err := m.await(ctx, m.server, "the server", func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(resp.Body)
			return fmt.Errorf("readyz: %s: %s", resp.Status, body)
		}
		return nil
	}); err != nil {
		return err
	}
	if m.api != nil {
		return nil
	}
	return m.login(ctx)
}

func (m *machine) login(ctx context.Context) error {
	c, _, err := codehub.Login(ctx, m.url, api.Login{Username: "admin", Password: adminPassword})
	if err != nil {
		return err
	}
	t, err := c.CreateToken(ctx, api.CreateToken{Name: "soak"})
	if err != nil {
		return err
	}
	m.token = t.Token
	m.api, err = codehub.New(m.url, t.Token)
	return err
}

// forward forwards connections to the server in the machine's network.
func (m *machine) forward() {
	address := fmt.Sprintf("127.0.0.1:%d", m.listener.Addr().(*net.TCPAddr).Port)
	for {
		from, err := m.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			ns := m.currentNS.Load()
			if ns == nil {
				return
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			to, err := ns.dial(ctx, address)
			cancel()
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(from, to)
		}()
	}
}

// loadImage copies an image from the host's Docker.
func (m *machine) loadImage(ctx context.Context, ref string) error {
	saved, err := env.docker.ImageSave(ctx, []string{ref})
	if err != nil {
		return err
	}
	defer saved.Close()
	loaded, err := m.docker.ImageLoad(ctx, saved)
	if err != nil {
		return err
	}
	defer loaded.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(loaded); err != nil {
		return err
	}
	if _, err := m.docker.ImageInspect(ctx, ref); err != nil {
		return fmt.Errorf("image %s was not loaded: %w: %s", ref, err, answer.String())
	}
	return nil
}

// template is the image of a disk on which Docker has the test image and
// codehub was started once. The disks of all machines are copies of it.
var template = sync.OnceValues(func() (string, error) {
	ctx := context.Background()
	empty := filepath.Join(env.scratch, "empty")
	for _, command := range [][]string{
		{"truncate", "-s", "6G", empty},
		{"mkfs.ext4", "-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", empty},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w: %s", command, err, out)
		}
	}
	defer os.Remove(empty)
	m, err := newMachine(empty, filepath.Join(env.output, "template.log"), "CODEHUB_DELETE_GRACE=0s")
	if err != nil {
		return "", err
	}
	defer m.close()
	if err := m.powerOn(); err != nil {
		return "", err
	}
	if err := m.startDocker(ctx); err != nil {
		return "", err
	}
	if err := m.loadImage(ctx, env.image); err != nil {
		return "", err
	}
	if err := m.startServer(ctx); err != nil {
		return "", err
	}
	// The first workspace creates the network in Docker. Docker 20.10 never
	// starts again if it ends while it creates a network.
	if err := m.firstWorkspace(ctx); err != nil {
		return "", err
	}
	if err := m.shutDown(); err != nil {
		return "", err
	}
	image := filepath.Join(env.scratch, "template")
	return image, os.Rename(m.image(), image)
})

// firstWorkspace runs a workspace and deletes it.
func (m *machine) firstWorkspace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	running := "RUNNING"
	made, err := m.api.Create(ctx, api.CreateWorkspace{Name: "first", DesiredState: &running})
	if err != nil {
		return err
	}
	if err := m.poll(ctx, made.ID, func(w api.Workspace, err error) bool { return err == nil && isSettled(w) }); err != nil {
		return err
	}
	if _, err := m.api.Delete(ctx, made.ID, true); err != nil {
		return err
	}
	return m.poll(ctx, made.ID, func(_ api.Workspace, err error) bool { return codehub.CodeOf(err) == "not_found" })
}

// poll polls a workspace until ok returns true.
func (m *machine) poll(ctx context.Context, id string, ok func(api.Workspace, error) bool) error {
	for {
		w, err := m.api.Get(ctx, id)
		if ok(w, err) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("workspace %s: phase %s, operation %s: %s (%w, %w)", id, w.Phase, w.Operation, str(w.ErrorMessage), err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
