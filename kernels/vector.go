package kernels

import "gonum.org/v1/gonum/blas/gonum"

// Zero is for i := range x { x[i] = 0 }.
func Zero[T Elem](s Stream, x Buf[T]) {
	if x.n > 0 {
		b := Bytes(x)
		s.Launch(Kernel{Op: &zeroOp, N: b.n, Args: [maxArgs]Arg{b.arg()}})
	}
}

var zeroOp = Op{"zero", func(k *Kernel) { clear(slice[uint8](k.Args[0])) }}

// Copy is for i := range dst { dst[i] = src[i] }. The windows are the same or do not overlap.
func Copy[T Elem](s Stream, dst, src Buf[T]) {
	sameLen("Copy", dst.n, src.n)
	if dst.n > 0 && dst != src {
		z := size[T]()
		s.Copy(dst.mem, src.mem, dst.off*z, src.off*z, dst.n*z)
	}
}

// Add is for i := range y { y[i] += a * x[i] }, the product rounded before the sum.
func Add(s Stream, y Buf[float32], a float32, x Buf[float32]) {
	sameLen("Add", y.n, x.n)
	s.Launch(Kernel{Op: &addOp, N: y.n, Args: [maxArgs]Arg{y.arg(), f32(a), x.arg()}})
}

var addOp = Op{"add", func(k *Kernel) {
	y, a, x := slice[float32](k.Args[0]), k.Args[1].f32(), slice[float32](k.Args[2])
	x = x[:len(y)]
	if a == 1 { // where a fused multiply-add, on other machines, rounds no differently
		gonum.Implementation{}.Saxpy(len(y), 1, x, 1, y, 1)
		return
	}
	for i, xi := range x {
		y[i] += float32(a * xi)
	}
}}

// Scale is for i := range x { x[i] *= a }.
func Scale(s Stream, x Buf[float32], a float32) {
	s.Launch(Kernel{Op: &scaleOp, N: x.n, Args: [maxArgs]Arg{x.arg(), f32(a)}})
}

var scaleOp = Op{"scale", func(k *Kernel) {
	x, a := slice[float32](k.Args[0]), k.Args[1].f32()
	for i := range x {
		x[i] *= a
	}
}}
