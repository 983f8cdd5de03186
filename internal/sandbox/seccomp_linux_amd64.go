package sandbox

import "golang.org/x/sys/unix"

// refusedHere are calls that only this machine has.
var refusedHere = []uint32{unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT, unix.SYS_QUERY_MODULE, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL}

const (
	arch    = unix.AUDIT_ARCH_X86_64
	highest = 0x3fffffff // above are the calls of x32
)
