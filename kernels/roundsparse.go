package kernels

import "math"

// RoundF16 rounds the values that were taken out of x to half precision, and gives back to x what that loses:
//
//	for j := range n[0] { r := half(val[j]); x[idx[j]] += val[j] - r; val[j] = r }
//
// Values too large for half precision become the largest that it has.
func RoundF16(s Stream, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32]) {
	launchRound(s, &roundF16Op, x, idx, val, n, Buf[float32]{})
}

// RoundInt8 does the same to whole multiples, -127 to 127, of scale[0] = max|val| / 127, rounding half to even.
func RoundInt8(s Stream, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32], scale Buf[float32]) {
	atLeast("RoundInt8", scale.n, 1)
	launchRound(s, &roundInt8Op, x, idx, val, n, scale)
}

// RoundSign does the same to plus or minus scale[0] = mean|val|. Zero counts as positive.
func RoundSign(s Stream, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32], scale Buf[float32]) {
	atLeast("RoundSign", scale.n, 1)
	launchRound(s, &roundSignOp, x, idx, val, n, scale)
}

func launchRound(s Stream, op *Op, x Buf[float32], idx Buf[uint32], val Buf[float32], n Buf[uint32], scale Buf[float32]) {
	sameLen(op.Name, idx.n, val.n)
	atLeast(op.Name, n.n, 1)
	s.Launch(Kernel{Op: op, N: idx.n, Args: [maxArgs]Arg{x.arg(), idx.arg(), val.arg(), n.arg(), scale.arg()}})
}

// rounding resolves the arguments of launchRound, cut to the length.
func rounding(k *Kernel) (x []float32, idx []uint32, val, scale []float32) {
	n := slice[uint32](k.Args[3])[0]
	return slice[float32](k.Args[0]), slice[uint32](k.Args[1])[:n], slice[float32](k.Args[2])[:n], slice[float32](k.Args[4])
}

const maxF16 = 65504

var roundF16Op = Op{"round_f16", func(k *Kernel) {
	x, idx, val, _ := rounding(k)
	for j, v := range val {
		r := fromF16(toF16(min(max(v, -maxF16), maxF16)))
		x[idx[j]] += v - r
		val[j] = r
	}
}}

var roundInt8Op = Op{"round_int8", func(k *Kernel) {
	x, idx, val, scale := rounding(k)
	var most float32
	for _, v := range val {
		most = max(most, float32(math.Abs(float64(v))))
	}
	a := most / 127
	scale[0] = a
	for j, v := range val {
		r := float32(Int8Level(v, a)) * a
		x[idx[j]] += v - r
		val[j] = r
	}
}}

// Int8Level is the whole number nearest to v / scale, within -127 and 127; zero where the scale is.
func Int8Level(v, scale float32) int8 {
	if scale == 0 {
		return 0
	}
	return int8(min(max(math.RoundToEven(float64(v/scale)), -127), 127))
}

var roundSignOp = Op{"round_sign", func(k *Kernel) {
	x, idx, val, scale := rounding(k)
	var sum float64
	for _, v := range val {
		sum += math.Abs(float64(v))
	}
	var a float32
	if len(val) > 0 {
		a = float32(sum / float64(len(val)))
	}
	scale[0] = a
	for j, v := range val {
		r := a
		if v < 0 {
			r = -a
		}
		x[idx[j]] += v - r
		val[j] = r
	}
}}
