package seccomp

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// conditional are the system calls whose arguments or capabilities decide.
var conditional = []string{"clone", "clone3", "socket", "socketcall", "socketpair", "personality", "chroot", "ioctl"}

// refused says why system calls are not in the profile. Together with the profile
// it has every system call of the kernel, so that a new one is a decision.
var refused = map[string]string{
	"io_uring": "io_uring_setup io_uring_enter io_uring_register",
	"keyrings, whose limits all workspaces share": "add_key keyctl request_key",
	"namespaces and mounts": `unshare setns mount umount umount2 pivot_root mount_setattr move_mount open_tree open_tree_attr
		fsconfig fsmount fsopen fspick listns`,
	"programs and probes in the kernel": "bpf perf_event_open userfaultfd fanotify_init fanotify_mark lookup_dcookie profil prof",
	"the host": `reboot kexec_load kexec_file_load init_module finit_module delete_module create_module query_module
		get_kernel_syms swapon swapoff sethostname setdomainname settimeofday clock_settime clock_settime64 clock_adjtime
		clock_adjtime64 adjtimex stime acct quotactl quotactl_fd syslog vhangup nfsservctl iopl ioperm idle bdflush
		pciconfig_iobase pciconfig_read pciconfig_write`,
	"files of the whole disk":      "open_by_handle_at",
	"the project of a file":        "file_setattr",
	"other processes":              "kcmp pidfd_getfd move_pages migrate_pages",
	"placement of memory":          "mbind set_mempolicy set_mempolicy_home_node get_mempolicy",
	"segments, of emulators alone": "modify_ldt vm86 vm86old",
	"obsolete, or never implemented in Linux": `_sysctl sysfs uselib ustat afs_syscall break ftime getpmsg putpmsg gtty stty lock mpx security tuxcall vserver
		oldfstat oldlstat oldstat olduname oldolduname sgetmask ssetmask ulimit`,
	"not system calls, in the tables of Go": "arch_specific_syscall syscall_mask",
}

func TestEverySystemCallIsDecided(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output()
	if err != nil {
		t.Fatal(err)
	}
	decided := map[string]string{}
	decide := func(why string, names []string) {
		for _, name := range names {
			if before, ok := decided[name]; ok {
				t.Errorf("%s is listed twice: %s, %s", name, before, why)
			}
			decided[name] = why
		}
	}
	decide("allowed", allowed())
	decide("conditional", conditional)
	for why, names := range refused {
		decide(why, strings.Fields(names))
	}
	number := regexp.MustCompile(`(?m)^\tSYS_(\w+)\s`)
	for _, arch := range []string{"amd64", "386", "arm64", "arm"} {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "zsysnum_linux_"+arch+".go"))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range number.FindAllStringSubmatch(string(source), -1) {
			found++
			if name := strings.ToLower(m[1]); decided[name] == "" {
				t.Errorf("%s of %s is neither allowed nor refused", name, arch)
			}
		}
		if found < 300 {
			t.Errorf("%d system calls of %s found: correct this test", found, arch)
		}
	}
}

// Of the requests of ioctl, those are refused that only btrfs has, and those that change the project of a
// file.
func TestIoctls(t *testing.T) {
	t.Parallel()
	rules := ioctls()
	allows := func(request uint64) bool {
		return slices.ContainsFunc(rules, func(r rule) bool {
			a := r.Args[0]
			return a.Op == opMasked && a.Index == 1 && request&a.Value == a.ValueTwo
		})
	}
	for low := range uint64(1 << 16) {
		refused := low>>8 == 0x94 || low == 0x5820 || low == 0x6602
		for _, upper := range []uint64{0, 0x5000 << 16, 0xffffffff << 32} {
			if request := upper | low; allows(request) == refused {
				t.Fatalf("%#x is allowed: %v", request, !refused)
			}
		}
	}
	for _, request := range []uint64{unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE} {
		if !allows(request) || !allows(0xffffffff<<32|request) || allows(request^1<<7) {
			t.Errorf("%#x is not the one that is allowed", request)
		}
	}
	for name, request := range map[string]uint64{
		"FS_IOC_FSSETXATTR": 0x401c5820, "FS_IOC_SETFLAGS": 0x40086602, "FS_IOC_SETFLAGS of 32 bits": 0x40046602, "BTRFS_IOC_SUBVOL_CREATE": 0x5000940e,
	} {
		if allows(request) {
			t.Errorf("%s is allowed", name)
		}
	}
	for name, request := range map[string]uint64{
		"FS_IOC_FSGETXATTR": 0x801c581f, "FS_IOC_GETFLAGS": 0x80086601, "FS_IOC_GETVERSION": 0x80087601, "TCGETS": unix.TCGETS, "FIONBIO": 0x5421,
	} {
		if !allows(request) {
			t.Errorf("%s is refused", name)
		}
	}
	if len(rules) > 48 {
		t.Errorf("%d rules: the filter compares a request with each of them", len(rules))
	}
}

func TestConditionalCallsHaveRules(t *testing.T) {
	t.Parallel()
	for _, r := range newProfile().Syscalls[1:] {
		for _, name := range r.Names {
			if !slices.Contains(conditional, name) {
				t.Errorf("%s has a rule and is not in the list of the test", name)
			}
			if r.Action == actAllow && len(r.Args) == 0 && r.Includes == nil {
				t.Errorf("%s is allowed without a condition", name)
			}
		}
	}
}
