// Package kernels holds the loops over memory that everything else is made of, and the devices that run them.
//
// One operation is one file: its contract is the comment on the exported function, its Go loop is the definition that every
// device must match. Operations never widen Device, so a new device is a new implementation of three small interfaces.
package kernels

import "context"

// Mem is a block of device memory. Its bytes are out of reach of everything but kernels and copies.
type Mem interface {
	Bytes() int
	Free()
}

// Device owns memory and makes streams. It knows nothing about gradients.
type Device interface {
	Name() string
	// Alloc returns zeroed memory, aligned to 64 bytes.
	Alloc(bytes int) (Mem, error)
	NewStream() (Stream, error)
	Close() error
}

// Stream runs work in order. Calls return nothing: the first failure sticks, later work is skipped and Sync reports it.
// One goroutine at a time.
type Stream interface {
	Device() Device
	Launch(k Kernel)
	// Copy moves n bytes from src at byte offset s to dst at byte offset d; the ranges may not overlap.
	Copy(dst, src Mem, d, s, n int)
	// Upload copies src to dst at byte offset d. src is free for reuse when Upload returns.
	Upload(dst Mem, d int, src []byte)
	// Download copies len(dst) bytes from src at byte offset s; dst is valid after Sync.
	Download(dst []byte, src Mem, s int)
	// Sync waits for everything issued so far.
	Sync(ctx context.Context) error
}

// Op is one operation: the name of its entry point on an accelerator, and the Go loop that defines it.
type Op struct {
	Name string
	Go   func(k *Kernel)
}

const maxArgs = 8

// Kernel is one launch of an Op over N elements. It is a value with room for all arguments, so that launching allocates nothing.
type Kernel struct {
	Op   *Op
	N    int
	Args [maxArgs]Arg
}

// Arg is a window on memory (Off in bytes, Len in elements), or a scalar's bits where Mem is nil.
type Arg struct {
	Mem  Mem
	Off  int
	Len  int
	Bits uint64
}

// DType is a number format as it crosses the wire.
type DType uint8

// The formats a Linear payload can travel in. F32 is the zero value.
const (
	F32 DType = iota
	F16
	BF16
)

// Bytes is the size of one element.
func (d DType) Bytes() int {
	if d == F32 {
		return 4
	}
	return 2
}

func (d DType) String() string { return [...]string{"fp32", "fp16", "bf16"}[d] }
