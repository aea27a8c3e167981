package kernels

import "math"

//go:generate go run -C _generate ./nonfinite -out ../nonfinite_amd64.s -stubs ../nonfinite_amd64.go -pkg kernels

const expMask = 0x7f800000 // all ones in an Inf or a NaN

// NonFinite is flag[0] |= 1 if any x[i] is an infinity or a NaN. It never clears the flag.
func NonFinite(s Stream, flag Buf[uint32], x Buf[float32]) {
	atLeast("NonFinite", flag.n, 1)
	s.Launch(Kernel{Op: &nonFiniteOp, N: x.n, Args: [maxArgs]Arg{flag.arg(), x.arg()}})
}

var nonFiniteOp = Op{"nonfinite", func(k *Kernel) {
	flag, x := slice[uint32](k.Args[0]), slice[float32](k.Args[1])
	// Adding one to an exponent of all ones carries into the sign bit, which the mask left clear. Four lanes hide the latency.
	const one = expMask &^ (expMask << 1)
	var a, b, c, d uint32
	for avx2 && len(x) >= 32 {
		n, bad := nonFiniteAVX2(x[:min(len(x), piece)])
		if bad != 0 {
			a = 1 << 31
		}
		x = x[n:]
	}
	for ; len(x) >= 4; x = x[4:] {
		a |= math.Float32bits(x[0])&expMask + one
		b |= math.Float32bits(x[1])&expMask + one
		c |= math.Float32bits(x[2])&expMask + one
		d |= math.Float32bits(x[3])&expMask + one
	}
	for _, v := range x {
		a |= math.Float32bits(v)&expMask + one
	}
	flag[0] |= (a | b | c | d) >> 31
}}
