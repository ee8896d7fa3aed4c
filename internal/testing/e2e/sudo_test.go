package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"codehub/api"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// sudoImage is the slim workspace image with sudo, as SUDO=1 sets it up.
const sudoImage = "codehub/sudo:latest"

// rootCapabilities are Docker's default capabilities except NET_RAW.
const rootCapabilities = "chown,dac_override,fowner,fsetid,kill,setgid,setuid,setpcap,net_bind_service,sys_chroot,mknod,audit_write,setfcap"

// With CODEHUB_WORKSPACE_SUDO a workspace's user becomes root by the real sudo. Root cannot
// change the agent or the IDE, nor reach another workspace or the host, and what it writes is
// kept in the home only. Without the setting the same image's sudo does not work.
func TestSudo(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	if out, err := exec.CommandContext(t.Context(), "testdata/sudo/build.sh", sudoImage, env.slimImage).CombinedOutput(); err != nil {
		t.Fatalf("build the image: %v: %s", err, out)
	}
	b := folderBucket(t)
	s := startQuick(t, append(b.settings, "CODEHUB_WORKSPACE_SUDO=true", "CODEHUB_DELETE_GRACE=0s")...)
	w := sudoWorkspace{&foreignWorkspace{server: s, id: s.create(api.CreateWorkspace{Name: "sudo", ImageRef: sudoImage}), b: b}}
	other := s.create(api.CreateWorkspace{Name: "neighbor"})
	s.awaitPhase(w.id, "RUNNING")
	s.awaitPhase(other, "RUNNING")
	uid := w.uid()

	for script, want := range map[string]string{
		"id -u": uid, "sudo -n id -u": "0", "sudo -n id -un": "root", "sudo -n -u coder id -u": uid, "sudo -n sh -c 'echo $SUDO_USER:$SUDO_UID:$SUDO_GID'": "coder:" + uid + ":" + uid,
		"getent passwd coder":                               "coder:x:" + uid + ":" + uid + ":coder:/home/coder:/bin/bash",
		"sudo -n sed -n 's/^CapEff:.//p' /proc/self/status": "00000000a80405fb", // rootCapabilities
	} {
		if got := strings.TrimSpace(w.run("/bin/bash", "-c", script)); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}

	w.attackTools()
	w.attackHost()
	w.attackNeighbor(other)
	w.checkMounts()
	for _, id := range []string{w.id, other} {
		if status, body := s.ide("GET", id, "/healthz", ""); status != 200 {
			t.Errorf("after the attacks the IDE of %s: %d %.300s", id, status, body)
		}
	}
	s.remove(other)

	w.run("sudo", "-n", "sh", "-ec", `touch /etc/made /usr/local/bin/made
cd ~coder && mkdir -m 750 kept && cd kept
echo content > root && chmod 640 root
echo content > others && chown 33:34 others
echo content > archived && chown 1000:1000 archived
cp /usr/bin/id id && chmod 4755 id`)
	if got := w.run("sudo", "-n", "/home/coder/kept/id", "-u") + w.run("/bin/bash", "-c", "ls /etc/made; sudo -n chmod 755 ~/kept; ~/kept/id -u"); got != "0\n/etc/made\n0\n" {
		t.Errorf("before the stop: %q", got)
	}
	owners := func(archived string) string {
		return "0:0 755 .\n0:0 640 root\n33:34 644 others\n" + archived + ":" + archived + " 644 archived\n0:0 4755 id\n"
	}
	list := "cd ~/kept && stat -c '%u:%g %a %n' . root others archived id; ls /etc/made /usr/local/bin/made 2> /dev/null; true"

	w.stop()
	w.setDesired(w.id, "RUNNING")
	w.awaitPhase(w.id, "RUNNING")
	if got, want := w.run("/bin/bash", "-c", list), owners("1000"); got != want {
		t.Errorf("after stop and start there are:\n%swant:\n%s", got, want)
	}
	w.stop()
	home := w.readHome(w.id)
	w.setDesired(w.id, "ARCHIVED")
	w.awaitArchived(b, w.id, home)

	s.Stop()
	s.Set("CODEHUB_WORKSPACE_SUDO=false")
	s.restart()
	w.setDesired(w.id, "STANDBY")
	w.awaitRestored(w.id, home)
	w.setDesired(w.id, "RUNNING")
	w.awaitPhase(w.id, "RUNNING")
	if got, want := w.run("/bin/bash", "-c", list), owners(uid); got != want {
		t.Errorf("after the restore there are:\n%swant:\n%s", got, want)
	}
	if out, code := w.exec(api.Exec{Args: []string{"sudo", "-n", "id", "-u"}}, ""); code != 1 || !strings.HasPrefix(out, `sudo: The "no new privileges" flag is set, which prevents sudo from running as root.`) {
		t.Errorf("without the setting sudo ends with %d: %s", code, out)
	}
	if got := w.run("/home/coder/kept/id", "-u"); got != uid+"\n" {
		t.Errorf("without the setting a setuid program of root runs as %q", got)
	}
	w.checkPrivileges()
	s.discard(w.id) // removal of its archives takes a minute
}

// sudoWorkspace is a workspace whose user becomes root.
type sudoWorkspace struct{ *foreignWorkspace }

func (w sudoWorkspace) stop() {
	w.Helper()
	w.setDesired(w.id, "STANDBY")
	w.awaitPhase(w.id, "STANDBY")
}

// attackers are the ways in which root runs a command: as it is, and with the workspace's uid,
// which the agent and the IDE have, in addition to root's capabilities.
func (w sudoWorkspace) attackers() map[string][]string {
	uid, caps := w.uid(), "+"+strings.ReplaceAll(rootCapabilities, ",", ",+")
	return map[string][]string{
		"root":                    {"sudo", "-n"},
		"root with the same user": {"sudo", "-n", "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps", caps, "--ambient-caps", caps},
	}
}

var refusal = regexp.MustCompile(`(?i)read-only file system|permission denied|operation not permitted|must be superuser`)

// refuse runs shell scripts as every attacker. Each must be refused.
func (w sudoWorkspace) refuse(scripts ...string) {
	w.Helper()
	for who, prefix := range w.attackers() {
		for _, script := range scripts {
			out, code := w.exec(api.Exec{Args: append(prefix[:len(prefix):len(prefix)], "sh", "-c", script)}, "")
			if code == 0 || !refusal.MatchString(out) || strings.Contains(out, "opened") {
				w.Errorf("%s: %s: status %d: %s", who, script, code, out)
			}
		}
	}
}

// attackTools attacks the agent, the IDE and their volumes.
func (w sudoWorkspace) attackTools() {
	w.Helper()
	probe := filepath.Join(w.TempDir(), "probe")
	build := exec.CommandContext(w.Context(), "go", "build", "-o", probe, "../../runtime/docker/testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, cmd := range []*exec.Cmd{build, exec.CommandContext(w.Context(), "docker", "cp", probe, workspace.ID(w.id).DockerName()+":/probe")} {
		if out, err := cmd.CombinedOutput(); err != nil {
			w.Fatalf("%v: %v: %s", cmd.Args, err, out)
		}
	}
	ide := strings.TrimSpace(w.run("pgrep", "--oldest", "--full", "^"+ideFolder+"/lib/node "))
	// The kernel keeps these signals from the first process. Tracing a process of the same
	// workspace needs no root where the kernel allows it.
	allowed := map[string]bool{
		"SIGKILL to process 1": true, "SIGSTOP to process 1": true,
		"trace process 1": true, "trace the IDE": true, "the memory of process 1": true,
	}
	for who, prefix := range w.attackers() {
		var got map[string]string
		if err := json.Unmarshal([]byte(w.run(append(prefix[:len(prefix):len(prefix)], "/probe", "attack", ide)...)), &got); err != nil {
			w.Fatal(err)
		}
		for what, came := range got {
			switch came {
			case "EROFS", "EPERM", "EACCES", "ETXTBSY", "ENOENT", "EADDRINUSE":
			default:
				if came != "done" || !allowed[what] {
					w.Errorf("%s: %s: %s", who, what, came)
				}
			}
			w.Logf("%s: %s: %s", who, what, came)
		}
		if len(got) < 20 {
			w.Errorf("%s tried %d attacks", who, len(got))
		}
	}
	// TestSystemCallsWithSudo in internal/runtime/docker compares those of the user with the profile.
	if user, root := w.run("/probe", "calls"), w.run("sudo", "-n", "/probe", "calls"); user != root {
		w.Errorf("system calls of the user: %s\nand of root: %s", user, root)
	}
	for _, dir := range []string{"/opt/codehub", ideFolder} {
		w.refuse("touch "+dir+"/x", "chmod 0777 "+dir, "mount -o remount,bind,rw "+dir, "mount --bind /tmp "+dir, "umount "+dir)
	}
}

// attackHost attacks the disks, the memory, the settings and the addresses of the host.
func (w sudoWorkspace) attackHost() {
	w.Helper()
	// Root may make devices, and opens those that Docker allows.
	if got := w.run("sudo", "-n", "sh", "-c", "mknod /tmp/zero c 1 5 && head -c 3 /tmp/zero | wc -c"); got != "3\n" {
		w.Errorf("a device that is allowed: %q", got)
	}
	w.refuse(
		`tail -n +3 /proc/partitions | while read major minor size name; do
			rm -f /tmp/$name; mknod /tmp/$name b $major $minor && head -c 1 /tmp/$name > /dev/null && echo opened $name
		done`,
		"rm -f /tmp/mem; mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
		"rm -f /tmp/kmsg; mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg",
		": >> /proc/sys/kernel/core_pattern", "mkdir /sys/made",
		`awk '$3 ~ /^cgroup/ { print $2 }' /proc/mounts | while read dir; do mkdir $dir/made && echo opened $dir; done`,
		busybox+" ip link set eth0 down",
		"perl -MSocket -e 'socket(S, AF_INET, SOCK_RAW, 1) or die qq($!\n)'",
		"perl -MSocket -e 'socket(S, 17, SOCK_RAW, 768) or die qq($!\n)'", // packets of any protocol
	)
	l, err := net.Listen("tcp", netip.AddrPortFrom(w.networkOf(w.id).gateway, 0).String())
	if err != nil {
		w.Fatal(err)
	}
	defer l.Close()
	if got := w.connect(l.Addr().String(), ""); got != "timeout" {
		w.Errorf("connecting to the host: %q", got)
	}
}

// attackNeighbor attacks another workspace.
func (w sudoWorkspace) attackNeighbor(id string) {
	w.Helper()
	own, other := w.networkOf(w.id), w.networkOf(id)
	w.refuse(fmt.Sprintf("%s ip addr add %s/32 dev eth0", busybox, other.address))
	for _, port := range []string{"61080", "8080"} {
		if got := w.connect(net.JoinHostPort(other.address.String(), port), other.secret); got != "timeout" {
			w.Errorf("connecting to port %s of another workspace: %q", port, got)
		}
	}
	if got := w.connect("127.0.0.1:61080", own.secret); got != "HTTP/1.1 200 done" {
		w.Errorf("connecting to its own agent: %q", got)
	}

	// Root takes the uid of the other workspace, and does not see its processes.
	info := foreignWorkspace{server: w.server, id: id}
	for who, uid := range map[string]string{"root": "0", "its own user": w.uid(), "the other's user": info.uid()} {
		environs := w.run("sudo", "-n", "setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "/probe", "environs")
		if strings.Contains(environs, other.secret) {
			w.Errorf("%s reads the other workspace's secret", who)
		}
		if who == "its own user" && !strings.Contains(environs, own.secret) {
			w.Error("its own user does not read its own secret")
		}
	}
}

// connect asks the agent at an address, as root, and returns the beginning of its answer.
func (w sudoWorkspace) connect(address, secret string) string {
	w.Helper()
	var got string
	if err := json.Unmarshal([]byte(w.run("sudo", "-n", "/probe", "connect", address, secret)), &got); err != nil {
		w.Fatal(err)
	}
	return got
}

// containerNetwork is where a container is on its network, and the secret of its agent.
type containerNetwork struct {
	address, gateway netip.Addr
	secret           string
}

func (w sudoWorkspace) networkOf(id string) containerNetwork {
	w.Helper()
	got, err := w.docker.ContainerInspect(w.Context(), workspace.ID(id).DockerName(), client.ContainerInspectOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var out containerNetwork
	for _, at := range got.Container.NetworkSettings.Networks {
		out.address, out.gateway = at.IPAddress, at.Gateway
	}
	for _, variable := range got.Container.Config.Env {
		if secret, ok := strings.CutPrefix(variable, "HASHED_PASSWORD="); ok {
			out.secret = secret
		}
	}
	if !out.address.IsValid() || !out.gateway.IsValid() || out.secret == "" {
		w.Fatalf("the container of %s has %+v", id, out)
	}
	return out
}
