package sandbox

import "golang.org/x/sys/unix"

// refusedHere are calls that only this machine has.
var refusedHere []uint32

const (
	arch    = unix.AUDIT_ARCH_AARCH64
	highest = 0x3fffffff
)
