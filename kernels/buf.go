package kernels

import (
	"context"
	"fmt"
	"math"
	"unsafe"
)

// Elem is what a Buf can hold.
type Elem interface {
	float32 | float64 | uint8 | int8 | uint16 | uint32 | uint64
}

// Buf is a typed window on device memory. The zero Buf is empty. Copying a Buf copies the window, not the memory.
type Buf[T Elem] struct {
	mem    Mem
	off, n int // in elements
}

// NewBuf allocates n zeroed elements.
func NewBuf[T Elem](d Device, n int) (Buf[T], error) {
	mem, err := d.Alloc(n * size[T]())
	if err != nil {
		return Buf[T]{}, fmt.Errorf("kernels: %d bytes on %s: %w", n*size[T](), d.Name(), err)
	}
	return Buf[T]{mem: mem, n: n}, nil
}

func size[T Elem]() int { var t T; return int(unsafe.Sizeof(t)) }

// Len is the number of elements.
func (b Buf[T]) Len() int { return b.n }

// Slice is the window [i, j) of b. It panics when out of range, as slicing does.
func (b Buf[T]) Slice(i, j int) Buf[T] {
	if i < 0 || j < i || j > b.n {
		panic(fmt.Sprintf("kernels: slice [%d:%d] of %d elements", i, j, b.n))
	}
	return Buf[T]{b.mem, b.off + i, j - i}
}

// Resize makes *b hold at least n elements and not over twice as many, by new memory where it must. What b held is then lost.
func Resize[T Elem](d Device, b *Buf[T], n int) error {
	if n <= b.n && 2*n >= b.n {
		return nil
	}
	b.Free()
	var err error
	*b, err = NewBuf[T](d, n)
	return err
}

// Join is a and then b as one window, where they lie so.
func Join[T Elem](a, b Buf[T]) (Buf[T], bool) {
	if a.mem != b.mem || a.off+a.n != b.off {
		return Buf[T]{}, false
	}
	return Buf[T]{a.mem, a.off, a.n + b.n}, true
}

// Fill lets f write the whole of b: in place where the host can see it, else in *stage, which grows as needed. What b held before is
// not to be relied on. The caller has synced.
func Fill[T Elem](s Stream, b Buf[T], stage *[]T, f func(x []T) error) error {
	if x, ok := Host(b); ok {
		return f(x)
	}
	if cap(*stage) < b.n {
		*stage = make([]T, b.n)
	}
	x := (*stage)[:b.n]
	if err := f(x); err != nil {
		return err
	}
	Write(s, b, x)
	return nil
}

// Same reports whether a and b are the same window on the same memory.
func (b Buf[T]) Same(a Buf[T]) bool { return a == b }

// Free gives the whole memory behind b back. Other windows on it die with it.
func (b Buf[T]) Free() {
	if b.mem != nil {
		b.mem.Free()
	}
}

func (b Buf[T]) arg() Arg { return Arg{Mem: b.mem, Off: b.off * size[T](), Len: b.n} }

func f32(x float32) Arg { return Arg{Bits: uint64(math.Float32bits(x))} }
func u64(x uint64) Arg  { return Arg{Bits: x} }

func (a Arg) f32() float32 { return math.Float32frombits(uint32(a.Bits)) }

// Bytes is b seen as bytes.
func Bytes[T Elem](b Buf[T]) Buf[uint8] {
	return Buf[uint8]{b.mem, b.off * size[T](), b.n * size[T]()}
}

// Read copies b to dst and syncs. Lengths must agree.
func Read[T Elem](ctx context.Context, s Stream, dst []T, b Buf[T]) error {
	sameLen("Read", len(dst), b.n)
	if b.n == 0 {
		return s.Sync(ctx)
	}
	s.Download(raw(dst), b.mem, b.off*size[T]())
	return s.Sync(ctx)
}

// Write copies src to b, in stream order. src is free for reuse when it returns. Lengths must agree.
func Write[T Elem](s Stream, b Buf[T], src []T) {
	sameLen("Write", len(src), b.n)
	if b.n > 0 {
		s.Upload(b.mem, b.off*size[T](), raw(src))
	}
}

// View syncs and returns b for reading: the memory itself where the host can see it, else a copy in *stage, which grows as needed.
// It is valid until the next work on b.
func View[T Elem](ctx context.Context, s Stream, b Buf[T], stage *[]T) ([]T, error) {
	if x, ok := Host(b); ok {
		return x, s.Sync(ctx)
	}
	if cap(*stage) < b.n {
		*stage = make([]T, b.n)
	}
	x := (*stage)[:b.n]
	return x, Read(ctx, s, x, b)
}

// Host returns the memory of b where the host can see it, without a sync. A caller that keeps it takes on the ordering itself.
func Host[T Elem](b Buf[T]) (x []T, ok bool) {
	if b.n == 0 {
		return nil, true
	}
	m, ok := b.mem.(*hostMem)
	if !ok || m.blind {
		return nil, false
	}
	return slice[T](b.arg()), true
}

// slice resolves an argument on devices that run on host memory.
func slice[T Elem](a Arg) []T {
	if a.Len == 0 {
		return nil
	}
	m := a.Mem.(*hostMem)
	if m.b == nil {
		panic("kernels: use of freed memory")
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&m.b[a.Off])), a.Len)
}

func raw[T Elem](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*size[T]())
}

func sameLen(op string, a, b int) {
	if a != b {
		panic(fmt.Sprintf("kernels: %s on %d and %d elements", op, a, b))
	}
}

func atLeast(op string, have, want int) {
	if have < want {
		panic(fmt.Sprintf("kernels: %s needs room for %d elements, has %d", op, want, have))
	}
}
