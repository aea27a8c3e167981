package kernels

import "math"

//go:generate go run -C _generate ./threshold -out ../threshold_amd64.s -stubs ../threshold_amd64.go -pkg kernels

// TakeAbove moves tau out of every entry of x beyond it, once:
//
//	if x[i] > tau { append i, +tau; x[i] -= tau }; if x[i] < -tau { append i, -tau; x[i] += tau }
//	n[0] = how many; scale[0] = tau; most[0] = the largest |x[i]| that is left
//
// idx and val hold at least x.Len(); tau > 0.
func TakeAbove(s Stream, idx Buf[uint32], val Buf[float32], n Buf[uint32], scale, most, x Buf[float32], tau float32) {
	atLeast("TakeAbove: idx", idx.n, x.n)
	atLeast("TakeAbove: val", val.n, x.n)
	atLeast("TakeAbove: n", n.n, 1)
	atLeast("TakeAbove: scale", scale.n, 1)
	atLeast("TakeAbove: most", most.n, 1)
	s.Launch(Kernel{Op: &takeAboveOp, N: x.n, Args: [maxArgs]Arg{idx.arg(), val.arg(), n.arg(), scale.arg(), most.arg(), x.arg(), f32(tau)}})
}

var takeAboveOp = Op{"take_above", func(k *Kernel) {
	idx, val, x := slice[uint32](k.Args[0]), slice[float32](k.Args[1]), slice[float32](k.Args[5])
	tau := k.Args[6].f32()
	bar := math.Float32bits(tau)
	n, i, most := 0, 0, uint32(0)
	for avx2 && i+8 <= len(x) {
		done, found, left := takeAboveAVX2(idx[n:], val[n:], x[i:min(len(x), i+piece)], uint32(i), tau)
		n, i, most = n+found, i+done, max(most, left)
	}
	for ; i+8 <= len(x); i += 8 {
		// Magnitudes are ordered like their bits. In most groups of eight none is beyond tau.
		x := x[i : i+8 : i+8]
		a := max(math.Float32bits(x[0])&magMask, math.Float32bits(x[1])&magMask)
		b := max(math.Float32bits(x[2])&magMask, math.Float32bits(x[3])&magMask)
		c := max(math.Float32bits(x[4])&magMask, math.Float32bits(x[5])&magMask)
		d := max(math.Float32bits(x[6])&magMask, math.Float32bits(x[7])&magMask)
		if m := max(max(a, b), max(c, d)); m <= bar {
			most = max(most, m)
			continue
		}
		n, most = takeAbove(idx, val, n, i, x, bar, most)
	}
	n, most = takeAbove(idx, val, n, i, x[i:], bar, most)
	slice[uint32](k.Args[2])[0] = uint32(n)
	slice[float32](k.Args[3])[0] = tau
	slice[float32](k.Args[4])[0] = math.Float32frombits(most)
}}

// takeAbove appends to the n entries of idx and val what x, whose first entry has index at, has beyond the threshold with the bits of bar.
func takeAbove(idx []uint32, val []float32, n, at int, x []float32, bar, most uint32) (int, uint32) {
	for i, v := range x {
		b := math.Float32bits(v)
		over := (bar - b&magMask) >> 31
		t := math.Float32frombits(b&^magMask | bar&-over)
		// Written always and kept where over: a branch that is hard to guess costs more than two stores.
		idx[n], val[n] = uint32(at+i), t
		n += int(over)
		x[i] = v - t
		most = max(most, math.Float32bits(x[i])&magMask)
	}
	return n, most
}
