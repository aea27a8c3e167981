package collective

import (
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/gradpress/gradpress/kernels"
)

// block is how many elements are worked on at once, so that they stay in the first-level cache between passes.
const block = 2048

// combine adds x to m, a message in r.Wire, or takes the larger. In float32 it multiplies the sum by after; in a narrow type, which could
// overflow, it multiplies x by before, and rounds the result to the wire. With keep the result goes to x too. wide is scratch.
func combine(r Reduction, m []byte, before float32, x []float32, after float32, keep bool, wide *[block]float32) {
	if r.Wire != kernels.F32 {
		combineHalf(r, numbers[uint16](m, len(x)), before, x, keep, wide)
		return
	}
	y := numbers[float32](m, len(x))
	for len(x) > 0 {
		n := min(block, len(x))
		fold(r.Op, y[:n], 1, x[:n])
		switch {
		case after != 1:
			clear(x[:n]) // x is what is kept: nobody scales but the last
			add(x[:n], after, y[:n])
			copy(y, x[:n])
		case keep:
			copy(x[:n], y)
		}
		x, y = x[n:], y[n:]
	}
}

func combineHalf(r Reduction, h []uint16, before float32, x []float32, keep bool, wide *[block]float32) {
	for len(x) > 0 {
		n := min(block, len(x))
		kernels.FromHalf(r.Wire, wide[:n], h[:n])
		fold(r.Op, wide[:n], before, x[:n])
		kernels.ToHalf(r.Wire, h[:n], wide[:n])
		if keep {
			kernels.FromHalf(r.Wire, x[:n], h[:n])
		}
		x, h = x[n:], h[n:]
	}
}

// fold is y[i] += a*x[i], or max(y[i], x[i]).
func fold(op Op, y []float32, a float32, x []float32) {
	if op != Max {
		add(y, a, x)
		return
	}
	x = x[:len(y)]
	for i := range y {
		y[i] = max(y[i], x[i])
	}
}

// add is y[i] += a*x[i], vectorised on amd64.
func add(y []float32, a float32, x []float32) { gonum.Implementation{}.Saxpy(len(y), a, x, 1, y, 1) }

// unpack is x[i] = m[i], with m in wire.
func unpack(x []float32, m []byte, wire kernels.DType) {
	if wire == kernels.F32 {
		copy(x, numbers[float32](m, len(x)))
		return
	}
	kernels.FromHalf(wire, x, numbers[uint16](m, len(x)))
}

func mul(x []float32, a float32) {
	for i := range x {
		x[i] *= a
	}
}
