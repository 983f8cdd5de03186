package sandbox

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// refused are the calls to the kernel that no stdio server needs and that attacks on a
// kernel use: other namespaces, mounts, modules, keys, tracing, clocks.
var refused = append([]uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CHROOT, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE,
	unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_INIT_MODULE, unix.SYS_KCMP,
	unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_MBIND, unix.SYS_MIGRATE_PAGES, unix.SYS_MOUNT,
	unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_PIDFD_GETFD, unix.SYS_PIVOT_ROOT, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_QUOTACTL,
	unix.SYS_QUOTACTL_FD, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS, unix.SYS_SETTIMEOFDAY,
	unix.SYS_SET_MEMPOLICY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}, refusedHere...)

// missing are calls that programs do without when there are none: io_uring goes past this
// filter, clone3 hides its flags from it, and the others hold memory that no mapping shows.
// So does shared anonymous memory, and another process's limits are not a server's to set.
var missing = []uint32{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_CLONE3, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_MSGGET, unix.SYS_SEMGET}

// Of linux/seccomp.h.
const (
	retAllow = 0x7fff0000
	retErrno = 0x00050000
	retKill  = 0x80000000

	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWTIME
)

// families are the sockets that may be made; a network has only its loopback.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// personalities are those of ordinary programs.
var personalities = []uint32{0, 0x8, 0x20000, 0x20008, 0xffffffff}

// typing are the requests to a terminal that put words into its keyboard.
var typing = []uint32{unix.TIOCSTI, unix.TIOCLINUX}

// filter is the program of a seccomp filter, as the kernel takes it.
func filter() []byte {
	var p program
	p.load(4) // arch
	p.unless(arch, retKill)
	p.load(0) // nr
	p.above(highest, retErrno|uint32(unix.ENOSYS))
	for _, nr := range refused {
		p.when(nr, retErrno|uint32(unix.EPERM))
	}
	for _, nr := range missing {
		p.when(nr, retErrno|uint32(unix.ENOSYS))
	}
	p.only(unix.SYS_SOCKET, 0, families, retErrno|uint32(unix.EAFNOSUPPORT))
	p.only(unix.SYS_SOCKETPAIR, 0, families, retErrno|uint32(unix.EAFNOSUPPORT))
	p.only(unix.SYS_PERSONALITY, 0, personalities, retErrno|uint32(unix.EPERM))
	p.never(unix.SYS_IOCTL, 1, typing, retErrno|uint32(unix.EPERM))
	p.only(unix.SYS_PRLIMIT64, 0, []uint32{0}, retErrno|uint32(unix.EPERM))
	p.all(unix.SYS_MMAP, 3, unix.MAP_SHARED|unix.MAP_ANONYMOUS, retErrno|uint32(unix.EPERM))
	p.flags(unix.SYS_CLONE, 0, namespaces, retErrno|uint32(unix.EPERM))
	p.ret(retAllow)
	return p.b
}

// program is a filter in the making.
type program struct{ b []byte }

func (p *program) op(code uint16, jt, jf uint8, k uint32) {
	p.b = binary.NativeEndian.AppendUint16(p.b, code)
	p.b = append(p.b, jt, jf)
	p.b = binary.NativeEndian.AppendUint32(p.b, k)
}

const (
	ldAbs = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jeq   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jgt   = unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K
	jset  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret   = unix.BPF_RET | unix.BPF_K
)

func (p *program) load(offset uint32)      { p.op(ldAbs, 0, 0, offset) }
func (p *program) ret(k uint32)            { p.op(ret, 0, 0, k) }
func (p *program) unless(k, answer uint32) { p.op(jeq, 1, 0, k); p.ret(answer) }
func (p *program) when(k, answer uint32)   { p.op(jeq, 0, 1, k); p.ret(answer) }
func (p *program) above(k, answer uint32)  { p.op(jgt, 0, 1, k); p.ret(answer) }
func (p *program) arg(nr uint32, i uint32, steps int) {
	p.op(jeq, 0, uint8(steps+2), nr)
	p.load(16 + 8*i) // the low half; both machines are little-endian
}

// only lets an argument be one of a list.
func (p *program) only(nr, i uint32, list []uint32, answer uint32) {
	p.arg(nr, i, len(list)+1)
	for j, v := range list {
		p.op(jeq, uint8(len(list)-j), 0, v)
	}
	p.ret(answer)
	p.load(0)
}

// never lets an argument be none of a list.
func (p *program) never(nr, i uint32, list []uint32, answer uint32) {
	p.arg(nr, i, len(list)+2)
	for j, v := range list {
		p.op(jeq, uint8(len(list)-j), 0, v)
	}
	p.op(unix.BPF_JMP|unix.BPF_JA, 0, 0, 1)
	p.ret(answer)
	p.load(0)
}

// all lets an argument hold not all of the bits at once.
func (p *program) all(nr, i, bits, answer uint32) {
	p.arg(nr, i, 3)
	p.op(unix.BPF_ALU|unix.BPF_AND|unix.BPF_K, 0, 0, bits)
	p.op(jeq, 0, 1, bits)
	p.ret(answer)
	p.load(0)
}

// flags lets an argument hold none of the bits.
func (p *program) flags(nr, i, bits, answer uint32) {
	p.arg(nr, i, 2)
	p.op(jset, 0, 1, bits)
	p.ret(answer)
	p.load(0)
}
