package kernels

// ScatterAdd is for j := range n[0] { y[idx[j]] += a * val[j] }. Indices are distinct.
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
		y[i] += float32(a * val[j])
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
