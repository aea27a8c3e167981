package collective

import "github.com/gradpress/gradpress/kernels"

// block is how many elements are worked on at once, so that they stay in the first-level cache between passes.
const block = 2048

// combine is m[i] = b*m[i] + a*x[i], or max(m[i], x[i]): m is a message in r.Wire, the work is in float32, the result is rounded to the
// wire. With keep it goes to x too.
func combine(r Reduction, m []byte, b float32, x []float32, a float32, keep bool) {
	if r.Wire != kernels.F32 {
		combineHalf(r, numbers[uint16](m, len(x)), x, a, keep)
		return
	}
	y := numbers[float32](m, len(x))
	for len(x) > 0 {
		n := min(block, len(x))
		fold(r.Op, y[:n], b, x[:n], a)
		if keep {
			copy(x[:n], y)
		}
		x, y = x[n:], y[n:]
	}
}

func combineHalf(r Reduction, h []uint16, x []float32, a float32, keep bool) {
	var wide [block]float32
	for len(x) > 0 {
		n := min(block, len(x))
		kernels.FromHalf(r.Wire, wide[:n], h[:n])
		fold(r.Op, wide[:n], 1, x[:n], a)
		kernels.ToHalf(r.Wire, h[:n], wide[:n])
		if keep {
			kernels.FromHalf(r.Wire, x[:n], h[:n])
		}
		x, h = x[n:], h[n:]
	}
}

// fold is y[i] = b*y[i] + a*x[i], or max(y[i], x[i]). Products are rounded before they are added: no FMA. b is 1 or a.
func fold(op Op, y []float32, b float32, x []float32, a float32) {
	x = x[:len(y)]
	switch {
	case op == Max:
		for i := range y {
			y[i] = max(y[i], x[i])
		}
	case a == 1:
		for len(y) >= 8 {
			u, v := (*[8]float32)(y), (*[8]float32)(x)
			u[0] += v[0]
			u[1] += v[1]
			u[2] += v[2]
			u[3] += v[3]
			u[4] += v[4]
			u[5] += v[5]
			u[6] += v[6]
			u[7] += v[7]
			x, y = x[8:], y[8:]
		}
		for i := range y {
			y[i] += x[i]
		}
	default:
		for len(y) >= 4 {
			u, v := (*[4]float32)(y), (*[4]float32)(x)
			u[0] = float32(b*u[0]) + float32(a*v[0])
			u[1] = float32(b*u[1]) + float32(a*v[1])
			u[2] = float32(b*u[2]) + float32(a*v[2])
			u[3] = float32(b*u[3]) + float32(a*v[3])
			x, y = x[4:], y[4:]
		}
		for i := range y {
			y[i] = float32(b*y[i]) + float32(a*x[i])
		}
	}
}

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
