// Package seccomp makes the seccomp profile of all containers that codehub starts.
// It lists what they may call; a system call that is not listed fails with EPERM.
// Docker's own profile differs between its versions: that of Docker 20.10 allows
// AF_VSOCK, AF_ALG and io_uring.
package seccomp

import (
	"encoding/json"
	"strings"

	"golang.org/x/sys/unix"
)

// Option returns the profile as an element of a container's SecurityOpt. The profile
// takes a container's capabilities into account, so all containers have the same.
func Option() string { return "seccomp=" + text }

var text = encode(newProfile())

func encode(p profile) string {
	b, err := json.Marshal(p)
	if err != nil {
		panic("encode the seccomp profile: " + err.Error())
	}
	return string(b)
}

// profile is Docker's format of a seccomp profile.
type profile struct {
	DefaultAction string `json:"defaultAction"`
	ArchMap       []arch `json:"archMap"`
	Syscalls      []rule `json:"syscalls"`
}

type arch struct {
	Architecture     string   `json:"architecture"`
	SubArchitectures []string `json:"subArchitectures"`
}

type rule struct {
	Names    []string `json:"names"`
	Action   string   `json:"action"`
	ErrnoRet *uint    `json:"errnoRet,omitempty"`
	Args     []arg    `json:"args,omitempty"` // all must match
	Includes *filter  `json:"includes,omitempty"`
}

// arg compares all 64 bits of an argument, of which the kernel may use only 32. So
// a rule must list the values that are allowed: a value that is refused could be
// passed with another upper half.
type arg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo,omitempty"`
	Op       string `json:"op"`
}

// filter limits a rule to containers with these capabilities.
type filter struct {
	Caps []string `json:"caps"`
}

const (
	actAllow = "SCMP_ACT_ALLOW"
	actErrno = "SCMP_ACT_ERRNO"
	opEqual  = "SCMP_CMP_EQ"
	opMasked = "SCMP_CMP_MASKED_EQ"
)

// newNamespaces are the flags of clone that create namespaces.
const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

func newProfile() profile {
	p := profile{
		DefaultAction: actErrno,
		ArchMap: []arch{
			// Programs of 32 bits run as well, but without socketcall; see below.
			{"SCMP_ARCH_X86_64", []string{"SCMP_ARCH_X86"}},
			{"SCMP_ARCH_AARCH64", []string{"SCMP_ARCH_ARM"}},
		},
		Syscalls: []rule{
			{Names: allowed(), Action: actAllow},
			// No flags can be read from clone3's argument. The C library falls back to
			// clone if clone3 does not exist.
			{Names: []string{"clone3"}, Action: actErrno, ErrnoRet: new(uint(unix.ENOSYS))},
			{Names: []string{"clone"}, Action: actAllow, Args: []arg{{Index: 0, Value: newNamespaces, Op: opMasked}}},
			// Programs of 32 bits may open sockets by socketcall, of which the filter does
			// not see the arguments. libseccomp adds it to the rules for sockets unless it
			// has a rule of its own with another error than the default.
			{Names: []string{"socketcall"}, Action: actErrno, ErrnoRet: new(uint(unix.ENOSYS))},
			// With sudo: Docker's default capabilities.
			{Names: []string{"chroot"}, Action: actAllow, Includes: &filter{[]string{"CAP_SYS_CHROOT"}}},
		},
	}
	for _, persona := range personalities {
		p.Syscalls = append(p.Syscalls, rule{Names: []string{"personality"}, Action: actAllow, Args: []arg{equal(0, persona)}})
	}
	for _, family := range []uint64{unix.AF_UNIX, unix.AF_NETLINK} {
		p.Syscalls = append(p.Syscalls, rule{Names: []string{"socket"}, Action: actAllow, Args: []arg{equal(0, family)}})
	}
	for _, family := range []uint64{unix.AF_INET, unix.AF_INET6} {
		for _, protocol := range protocols {
			p.Syscalls = append(p.Syscalls, rule{Names: []string{"socket"}, Action: actAllow, Args: []arg{equal(0, family), equal(2, protocol)}})
		}
	}
	p.Syscalls = append(p.Syscalls, ioctls()...)
	// Other families have no pairs, but the kernel would load their modules.
	p.Syscalls = append(p.Syscalls, rule{Names: []string{"socketpair"}, Action: actAllow, Args: []arg{equal(0, unix.AF_UNIX)}})
	return p
}

// ioctls returns the rules that allow all requests of ioctl except those by which a workspace would
// leave the quota of its home. The kernel reads 32 bits of a request.
func ioctls() []rule {
	rules := allowOthers(refusedRequests, 0, 0)
	for _, request := range []uint64{unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE} { // other file systems have them, too
		rules = append(rules, allowIoctl(1<<32-1, request))
	}
	return rules
}

// A requests is all requests with the same type, the second lowest byte, and number, the lowest one.
// The bytes above say the direction and the size of the argument, and differ between programs of 32
// and 64 bits.
type requests struct{ mask, value uint64 }

var refusedRequests = []requests{
	{0xff00, 0x9400},      // all of btrfs: subvolumes do not count for the quota of the folder that they are in
	{0xffff, 'X'<<8 | 32}, // FS_IOC_FSSETXATTR: the project of a file, which its owner can change
	{0xffff, 'f'<<8 | 2},  // FS_IOC_SETFLAGS: whether the content of a folder gets its project
}

// allowOthers returns rules that allow the requests that begin with the bits of value in mask and are
// not refused. No two of them allow the same request. The mask has the highest bits of 16.
func allowOthers(refused []requests, mask, value uint64) []rule {
	var within []requests
	for _, r := range refused {
		if (r.value^value)&r.mask&mask == 0 {
			if r.mask&^mask == 0 {
				return nil // all of them are refused
			}
			within = append(within, r)
		}
	}
	if len(within) == 0 {
		return []rule{allowIoctl(mask, value)}
	}
	next := mask>>1 | 1<<15
	bit := next &^ mask
	return append(allowOthers(within, next, value), allowOthers(within, next, value|bit)...)
}

func allowIoctl(mask, value uint64) rule {
	return rule{Names: []string{"ioctl"}, Action: actAllow, Args: []arg{{Index: 1, Value: mask, ValueTwo: value, Op: opMasked}}}
}

func equal(index uint, value uint64) arg { return arg{Index: index, Value: value, Op: opEqual} }

// personalities are what programs set: the ordinary one, 32 bits (setarch), the
// version 2.6 of the kernel, no randomized addresses (debuggers), and the query.
var personalities = []uint64{0, 0x8, 0x20000, 0x20008, 0x40000, 0x40008, 0xffffffff}

// protocols are the Internet protocols. Others, such as SCTP and DCCP, would make
// the host load modules that few others use.
var protocols = []uint64{unix.IPPROTO_IP, unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_MPTCP}

func allowed() []string {
	var out []string
	for _, group := range groups {
		out = append(out, strings.Fields(group)...)
	}
	return out
}
