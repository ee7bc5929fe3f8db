//! The lists of system calls: one table each, by name, per machine.

macro_rules! list {
    ($(#[$doc:meta])* $name:ident, all: [$($all:ident)*], numbers: [$($number:literal)*], x86_64: [$($x86_64:ident)*]) => {
        $(#[$doc])*
        pub const $name: &[i64] = &[
            $(libc::$all,)*
            $($number,)*
            $(#[cfg(target_arch = "x86_64")] libc::$x86_64,)*
        ];
    };
}

list! {
    /// What commands and workers may call, without a look at arguments; `clone`, `clone3`, `openat2`, `socket` and, for
    /// commands, `memfd_create` have rules of their own. 452 is `fchmodat2`.
    COMMON,
    all: [
        SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid SYS_kill SYS_tkill SYS_tgkill
        SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigsuspend SYS_rt_sigpending
        SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_sigaltstack SYS_restart_syscall
        SYS_set_tid_address SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_prctl SYS_getpid SYS_getppid
        SYS_gettid SYS_getpgid SYS_setpgid SYS_getsid SYS_setsid SYS_getpriority SYS_setpriority SYS_ioprio_get
        SYS_ioprio_set SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity SYS_sched_getparam
        SYS_sched_setparam SYS_sched_getscheduler SYS_sched_setscheduler SYS_sched_getattr SYS_sched_setattr
        SYS_sched_get_priority_max SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_getcpu SYS_capget
        SYS_capset SYS_prlimit64 SYS_getrusage SYS_getitimer SYS_setitimer SYS_times SYS_uname SYS_sysinfo
        SYS_pidfd_open SYS_pidfd_send_signal SYS_mmap SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_brk
        SYS_mlock SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_membarrier SYS_msync SYS_mincore
        SYS_memfd_create SYS_pkey_alloc SYS_pkey_free SYS_pkey_mprotect SYS_shmget SYS_shmat SYS_shmdt
        SYS_shmctl SYS_openat SYS_close SYS_close_range SYS_read SYS_write SYS_pread64 SYS_pwrite64
        SYS_readv SYS_writev SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_lseek SYS_dup SYS_dup3
        SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_fadvise64 SYS_readahead SYS_truncate
        SYS_ftruncate SYS_fallocate SYS_fstat SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2
        SYS_getdents64 SYS_getcwd SYS_chdir SYS_fchdir SYS_mkdirat SYS_unlinkat SYS_renameat2 SYS_linkat
        SYS_symlinkat SYS_readlinkat SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat SYS_umask SYS_utimensat
        SYS_mknodat SYS_sendfile SYS_copy_file_range SYS_splice SYS_tee SYS_vmsplice SYS_ioctl SYS_ppoll
        SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd2 SYS_pipe2
        SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch SYS_signalfd4 SYS_timerfd_create
        SYS_timerfd_settime SYS_timerfd_gettime SYS_getxattr SYS_setxattr SYS_listxattr SYS_removexattr
        SYS_lgetxattr SYS_lsetxattr SYS_llistxattr SYS_lremovexattr SYS_fgetxattr SYS_fsetxattr SYS_flistxattr
        SYS_fremovexattr SYS_statfs SYS_fstatfs SYS_name_to_handle_at SYS_io_setup SYS_io_destroy SYS_io_submit
        SYS_io_cancel SYS_io_getevents SYS_connect SYS_sendto SYS_socketpair SYS_bind SYS_listen SYS_accept
        SYS_accept4 SYS_getsockname SYS_getpeername SYS_getsockopt SYS_setsockopt SYS_shutdown SYS_sendmsg
        SYS_sendmmsg SYS_recvfrom SYS_recvmsg SYS_recvmmsg SYS_clock_gettime SYS_clock_getres
        SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_timer_create SYS_timer_settime SYS_timer_gettime
        SYS_timer_getoverrun SYS_timer_delete SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_semget SYS_semop
        SYS_semctl SYS_semtimedop SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive SYS_mq_notify
        SYS_mq_getsetattr SYS_getrandom SYS_futex SYS_futex_waitv SYS_getuid SYS_geteuid SYS_getgid SYS_getegid
        SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_getresuid SYS_getresgid
        SYS_getgroups SYS_setgroups SYS_setfsuid SYS_setfsgid
    ],
    numbers: [452],
    x86_64: [
        SYS_fork SYS_vfork SYS_pause SYS_arch_prctl SYS_getpgrp SYS_open SYS_creat SYS_dup2 SYS_stat SYS_lstat
        SYS_access SYS_getdents SYS_mkdir SYS_rmdir SYS_unlink SYS_rename SYS_link SYS_symlink SYS_readlink
        SYS_chmod SYS_chown SYS_lchown SYS_utime SYS_utimes SYS_futimesat SYS_mknod SYS_poll SYS_select
        SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_pipe SYS_inotify_init SYS_signalfd SYS_time SYS_alarm
        SYS_getrlimit SYS_setrlimit SYS_sync_file_range SYS_renameat
    ]
}

list! {
    /// What a process calls that only computes, reads and writes descriptors it holds, and ends.
    DENY_ALL,
    all: [
        SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_lseek SYS_fstat SYS_ftruncate
        SYS_fsync SYS_fdatasync SYS_close SYS_fcntl SYS_ppoll SYS_mmap SYS_munmap SYS_mprotect SYS_mremap
        SYS_madvise SYS_brk SYS_futex SYS_sched_yield SYS_sched_getaffinity SYS_membarrier SYS_set_robust_list
        SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall
        SYS_gettid SYS_getpid SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_getrusage SYS_prlimit64
        SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_times
        SYS_uname SYS_sysinfo SYS_getrandom SYS_getcpu SYS_exit SYS_exit_group
    ],
    numbers: [],
    x86_64: [SYS_poll SYS_time SYS_arch_prctl]
}

list! {
    /// What a command needs to lay a Landlock domain of its own over the one it has.
    LANDLOCK,
    all: [],
    numbers: [444 445 446],
    x86_64: []
}

list! {
    /// What a process calls that waits for a child and ends as it did.
    RELAY,
    all: [
        SYS_waitid SYS_wait4 SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_restart_syscall SYS_getpid
        SYS_gettid SYS_close SYS_exit SYS_exit_group SYS_munmap SYS_mmap SYS_brk
    ],
    numbers: [],
    x86_64: []
}

list! {
    /// What a process calls that waits for the end of a pipe.
    WAIT,
    all: [SYS_read SYS_rt_sigreturn SYS_restart_syscall SYS_exit SYS_exit_group],
    numbers: [],
    x86_64: []
}

list! {
    /// What no list may ever hold.
    NEVER,
    all: [
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_bpf SYS_userfaultfd SYS_perf_event_open
        SYS_process_vm_readv SYS_process_vm_writev SYS_open_by_handle_at SYS_keyctl SYS_add_key SYS_request_key SYS_ptrace
        SYS_mount SYS_umount2 SYS_pivot_root SYS_move_mount SYS_open_tree SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
        SYS_mount_setattr SYS_unshare SYS_setns SYS_chroot SYS_init_module SYS_finit_module SYS_delete_module
        SYS_kexec_load SYS_reboot SYS_swapon SYS_swapoff SYS_quotactl SYS_settimeofday SYS_clock_settime SYS_adjtimex
        SYS_clock_adjtime SYS_mbind SYS_set_mempolicy SYS_migrate_pages SYS_move_pages SYS_fanotify_init
        SYS_fanotify_mark SYS_seccomp SYS_personality SYS_kcmp SYS_acct SYS_syslog SYS_sethostname SYS_setdomainname
        SYS_vhangup SYS_lookup_dcookie SYS_process_madvise SYS_pidfd_getfd
    ],
    numbers: [],
    x86_64: [SYS_iopl SYS_ioperm SYS_kexec_file_load SYS_modify_ldt SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_list_holds_what_none_may_hold() {
        for call in NEVER {
            for list in [COMMON, DENY_ALL, LANDLOCK, RELAY, WAIT] {
                assert!(!list.contains(call), "{call}");
            }
        }
    }

    #[test]
    fn deny_all_names_no_path_no_process_and_no_socket() {
        for call in [libc::SYS_openat, libc::SYS_execve, libc::SYS_clone, libc::SYS_socket, libc::SYS_connect] {
            assert!(!DENY_ALL.contains(&call), "{call}");
        }
    }
}
