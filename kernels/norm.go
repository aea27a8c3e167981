package kernels

import "math"

// SumSquares is for _, v := range x { sum[0] += float64(v) * float64(v) }; the order of the sum is the device's.
func SumSquares(s Stream, sum Buf[float64], x Buf[float32]) {
	atLeast("SumSquares", sum.n, 1)
	s.Launch(Kernel{Op: &sumSquaresOp, N: x.n, Args: [maxArgs]Arg{sum.arg(), x.arg()}})
}

var sumSquaresOp = Op{"sum_squares", func(k *Kernel) {
	sum, x := slice[float64](k.Args[0]), slice[float32](k.Args[1])
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0]) * float64(x[0])
		b += float64(x[1]) * float64(x[1])
		c += float64(x[2]) * float64(x[2])
		d += float64(x[3]) * float64(x[3])
	}
	for _, v := range x {
		a += float64(v) * float64(v)
	}
	sum[0] += (a + b) + (c + d)
}}

// ClipNorm is if n := sqrt(sum[0]); n > limit { for i := range x { x[i] *= limit / n } }: it scales x down to a norm that was
// summed before, of x or of more than x.
func ClipNorm(s Stream, x Buf[float32], sum Buf[float64], limit float32) {
	atLeast("ClipNorm", sum.n, 1)
	s.Launch(Kernel{Op: &clipNormOp, N: x.n, Args: [maxArgs]Arg{x.arg(), sum.arg(), f32(limit)}})
}

var clipNormOp = Op{"clip_norm", func(k *Kernel) {
	x, sum, limit := slice[float32](k.Args[0]), slice[float64](k.Args[1]), float64(k.Args[2].f32())
	norm := math.Sqrt(sum[0])
	if !(norm > limit) {
		return
	}
	a := float32(limit / norm)
	for i := range x {
		x[i] *= a
	}
}}
