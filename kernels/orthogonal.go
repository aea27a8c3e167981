package kernels

import "math"

// Orthogonalise makes the rank columns of p, which lie end to end, orthonormal from left to right by modified Gram-Schmidt, the same bits
// on every device:
//
//	for j := range rank {
//		was := |p[j]|
//		for range 2 {
//			for i := range j { p[j] -= (p[i] . p[j]) p[i] }
//			if !(|p[j]| > 1e-5 * was) { p[j] = 0; break }
//			p[j] /= |p[j]|
//			was = 1
//		}
//	}
//
// So a column that the earlier ones explain becomes zero: what rounding leaves of it is not orthogonal. The second time takes away
// what rounding left of the earlier columns in a column of which little remained. Products, sums, lengths and quotients are float64, sums
// in four lanes; elements are rounded to float32 each time.
func Orthogonalise(s Stream, p Buf[float32], rank int) {
	sameLen("Orthogonalise", p.n, p.n/rank*rank)
	s.Launch(Kernel{Op: &orthogonaliseOp, N: p.n / rank, Args: [maxArgs]Arg{p.arg(), u64(uint64(rank))}})
}

// dependent is the share of a column's length that must remain of it.
const dependent = 1e-5

var orthogonaliseOp = Op{"orthogonalise", func(k *Kernel) {
	p, rank, n := slice[float32](k.Args[0]), int(k.Args[1].Bits), k.N
	for j := range rank {
		c := p[j*n : (j+1)*n]
		was := math.Sqrt(dot64(c, c))
		for range 2 {
			for i := range j {
				e := p[i*n : (i+1)*n]
				d := dot64(e, c)
				for r, x := range e {
					c[r] = float32(float64(c[r]) - float64(d*float64(x)))
				}
			}
			norm := math.Sqrt(dot64(c, c))
			if !(norm > dependent*was) {
				clear(c)
				break
			}
			for r, x := range c {
				c[r] = float32(float64(x) / norm)
			}
			was = 1
		}
	}
}}

func dot64(x, y []float32) float64 {
	y = y[:len(x)]
	var a, b, c, d float64
	i := 0
	for ; i+3 < len(x); i += 4 {
		a += float64(x[i]) * float64(y[i])
		b += float64(x[i+1]) * float64(y[i+1])
		c += float64(x[i+2]) * float64(y[i+2])
		d += float64(x[i+3]) * float64(y[i+3])
	}
	for ; i < len(x); i++ {
		a += float64(x[i]) * float64(y[i])
	}
	return (a + b) + (c + d)
}

// ReplaceDead is for k := range rank { if p[k] is all zeros { q[k] = first[k] } }, k counting columns that lie end to end.
func ReplaceDead(s Stream, q, first, p Buf[float32], rank int) {
	sameLen("ReplaceDead", q.n, first.n)
	sameLen("ReplaceDead: q", q.n, q.n/rank*rank)
	sameLen("ReplaceDead: p", p.n, p.n/rank*rank)
	s.Launch(Kernel{Op: &replaceDeadOp, N: rank, Args: [maxArgs]Arg{q.arg(), first.arg(), p.arg()}})
}

var replaceDeadOp = Op{"replace_dead", func(kn *Kernel) {
	q, first, p, rank := slice[float32](kn.Args[0]), slice[float32](kn.Args[1]), slice[float32](kn.Args[2]), kn.N
	rows, cols := len(p)/rank, len(q)/rank
	for k := range rank {
		if zero(p[k*rows : (k+1)*rows]) {
			copy(q[k*cols:(k+1)*cols], first[k*cols:])
		}
	}
}}

func zero(x []float32) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}
