package kernels

import "slices"

// ScatterAdd is for j := range n[0] { y[idx[j]] += a * val[j] }. Indices are distinct; entries beyond the end of y are left out.
func ScatterAdd(s Stream, y Buf[float32], a float32, idx Buf[uint32], val Buf[float32], n Buf[uint32]) {
	sameLen("ScatterAdd", idx.n, val.n)
	atLeast("ScatterAdd", n.n, 1)
	s.Launch(Kernel{Op: &scatterAddOp, N: idx.n, Args: [maxArgs]Arg{y.arg(), f32(a), idx.arg(), val.arg(), n.arg()}})
}

var scatterAddOp = Op{"scatter_add", func(k *Kernel) {
	y, a := slice[float32](k.Args[0]), k.Args[1].f32()
	idx, val, n := slice[uint32](k.Args[2]), slice[float32](k.Args[3]), slice[uint32](k.Args[4])[0]
	val = val[:n]
	for j, i := range idx[:n] {
		if int(i) < len(y) {
			y[i] += float32(a * val[j])
		}
	}
}}

// ClearAt is for j := range n[0] { x[idx[j]] = 0 }.
func ClearAt(s Stream, x Buf[float32], idx, n Buf[uint32]) {
	atLeast("ClearAt", n.n, 1)
	s.Launch(Kernel{Op: &clearAtOp, N: idx.n, Args: [maxArgs]Arg{x.arg(), idx.arg(), n.arg()}})
}

var clearAtOp = Op{"clear_at", func(k *Kernel) {
	x, idx, n := slice[float32](k.Args[0]), slice[uint32](k.Args[1]), slice[uint32](k.Args[2])[0]
	for _, i := range idx[:n] {
		x[i] = 0
	}
}}

// SelectRange picks the entries with lo <= idx[j] < hi of a sparse vector, and counts their indices from lo:
//
//	m := 0; for j := range n[0] { if i := idx[j]; lo <= i && i < hi { oidx[m], oval[m] = i-lo, val[j]; m++ } }; on[0] = m
//
// Indices ascend. oidx and oval hold as many entries as there can be.
func SelectRange(s Stream, oidx Buf[uint32], oval Buf[float32], on Buf[uint32], idx Buf[uint32], val Buf[float32], n Buf[uint32], lo, hi int) {
	sameLen("SelectRange", idx.n, val.n)
	atLeast("SelectRange: out", min(oidx.n, oval.n), min(idx.n, max(hi-lo, 0)))
	s.Launch(Kernel{Op: &selectRangeOp, N: idx.n, Args: [maxArgs]Arg{oidx.arg(), oval.arg(), on.arg(), idx.arg(), val.arg(), n.arg(), u64(uint64(lo)), u64(uint64(hi))}})
}

var selectRangeOp = Op{"select_range", func(k *Kernel) {
	oidx, oval, on := slice[uint32](k.Args[0]), slice[float32](k.Args[1]), slice[uint32](k.Args[2])
	idx, val, n := slice[uint32](k.Args[3]), slice[float32](k.Args[4]), slice[uint32](k.Args[5])[0]
	lo, hi := uint32(k.Args[6].Bits), k.Args[7].Bits
	from, _ := slices.BinarySearch(idx[:n], lo)
	m := 0
	for j := from; j < int(n) && uint64(idx[j]) < hi; j++ {
		oidx[m], oval[m] = idx[j]-lo, val[j]
		m++
	}
	on[0] = uint32(m)
}}
