package seccomp

// groups are the system calls that are allowed with any argument. A name that the
// kernel or the architecture does not have is ignored.
var groups = []string{
	// Files and directories.
	`access faccessat faccessat2 chdir fchdir getcwd chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
	close close_range copy_file_range creat open openat openat2 dup dup2 dup3 fadvise64 fallocate fcntl flock
	fdatasync fsync sync syncfs sync_file_range msync getdents getdents64 link linkat symlink symlinkat lseek
	mkdir mkdirat mknod mknodat read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 readahead
	readlink readlinkat rename renameat renameat2 rmdir unlink unlinkat sendfile splice tee vmsplice
	stat lstat fstat newfstatat statx statfs fstatfs truncate ftruncate umask utime utimes utimensat futimesat
	getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr listxattrat
	setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat
	file_getattr name_to_handle_at cachestat statmount listmount`,
	`inotify_init inotify_init1 inotify_add_watch inotify_rm_watch`,

	// Waiting for descriptors, events and asynchronous input and output.
	`poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_wait epoll_wait_old
	epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4 pipe pipe2
	io_setup io_destroy io_submit io_cancel io_getevents io_pgetevents`,

	// Memory.
	`brk mmap munmap mremap mprotect madvise process_madvise process_mrelease mincore mlock mlock2 mlockall munlock
	munlockall mseal membarrier memfd_create memfd_secret map_shadow_stack remap_file_pages
	pkey_alloc pkey_free pkey_mprotect`,

	// Processes and threads. ptrace and its relatives reach only processes of the
	// same container and user; debuggers need them.
	`fork vfork execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal
	ptrace process_vm_readv process_vm_writev
	getpid getppid gettid getpgid getpgrp setpgid getsid setsid prctl arch_prctl seccomp
	landlock_create_ruleset landlock_add_rule landlock_restrict_self
	lsm_get_self_attr lsm_set_self_attr lsm_list_modules
	set_tid_address set_robust_list get_robust_list set_thread_area get_thread_area rseq rseq_slice_yield restart_syscall
	futex futex_wait futex_waitv futex_wake futex_requeue
	getpriority setpriority ioprio_get ioprio_set getrlimit setrlimit prlimit64 getrusage getcpu
	sched_get_priority_max sched_get_priority_min sched_getaffinity sched_setaffinity sched_getattr sched_setattr
	sched_getparam sched_setparam sched_getscheduler sched_setscheduler sched_rr_get_interval sched_yield
	sysinfo times uname uretprobe uprobe`,

	// Users. Without capabilities they only set what is set already.
	`getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid setresgid
	setfsuid setfsgid setgroups capget capset`,

	// Signals and time.
	`rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
	rt_tgsigqueueinfo sigaltstack pause alarm getitimer setitimer
	clock_getres clock_gettime clock_nanosleep nanosleep gettimeofday time getrandom
	timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime`,

	// Sockets; socket and socketpair have rules of their own.
	`accept accept4 bind connect listen getpeername getsockname getsockopt setsockopt
	recvfrom recvmsg recvmmsg sendto sendmsg sendmmsg shutdown`,

	// Interprocess communication, in the container's own namespace.
	`ipc msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
	mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink`,

	// The same on 32 bits.
	`_llseek _newselect chown32 fchown32 lchown32 fadvise64_64 arm_fadvise64_64 arm_sync_file_range sync_file_range2
	fcntl64 fstat64 fstatat64 lstat64 stat64 statfs64 fstatfs64 ftruncate64 truncate64 mmap2 sendfile64 recv send
	getegid32 geteuid32 getgid32 getgroups32 getresgid32 getresuid32 getuid32 setfsgid32 setfsuid32 setgid32 setgroups32
	setregid32 setresgid32 setresuid32 setreuid32 setuid32 ugetrlimit waitpid nice readdir
	sigaction signal sigpending sigprocmask sigreturn sigsuspend
	clock_getres_time64 clock_gettime64 clock_nanosleep_time64 futex_time64 io_pgetevents_time64 mq_timedreceive_time64
	mq_timedsend_time64 ppoll_time64 pselect6_time64 recvmmsg_time64 rt_sigtimedwait_time64 sched_rr_get_interval_time64
	semtimedop_time64 timer_gettime64 timer_settime64 timerfd_gettime64 timerfd_settime64 utimensat_time64
	breakpoint cacheflush set_tls`,
}
