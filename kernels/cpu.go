package kernels

import (
	"context"
	"errors"
	"unsafe"
)

// CPU returns the default device: ordinary memory, work done by the calling goroutine at once.
func CPU() Device { return cpu{} }

type cpu struct{}

func (cpu) Name() string                 { return "cpu" }
func (cpu) Alloc(bytes int) (Mem, error) { return hostAlloc(bytes, false) }
func (d cpu) NewStream() (Stream, error) { return &cpuStream{dev: d}, nil }
func (cpu) Close() error                 { return nil }

// hostMem is memory in this process. Blind memory is hidden from View and Host, as an accelerator's is.
type hostMem struct {
	b     []byte
	blind bool
}

const align = 64

func hostAlloc(bytes int, blind bool) (Mem, error) {
	if bytes < 0 || bytes > 1<<40 {
		return nil, errors.New("size out of range")
	}
	b := make([]byte, bytes+align)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (align - 1))
	return &hostMem{b: b[skip : skip+bytes : skip+bytes], blind: blind}, nil
}

func (m *hostMem) Bytes() int { return len(m.b) }
func (m *hostMem) Free()      { m.b = nil }

type cpuStream struct {
	dev Device
	k   Kernel // here and not on the stack, where the call through Op would move it to the heap each time
}

func (s *cpuStream) Device() Device { return s.dev }

func (s *cpuStream) Launch(k Kernel) {
	s.k = k
	k.Op.Go(&s.k)
}

func (s *cpuStream) Copy(dst, src Mem, d, o, n int) {
	copy(dst.(*hostMem).b[d:d+n], src.(*hostMem).b[o:o+n])
}

func (s *cpuStream) Upload(dst Mem, d int, src []byte) {
	copy(dst.(*hostMem).b[d:d+len(src)], src)
}

func (s *cpuStream) Download(dst []byte, src Mem, o int) {
	copy(dst, src.(*hostMem).b[o:o+len(dst)])
}

func (s *cpuStream) Sync(ctx context.Context) error { return ctx.Err() }
