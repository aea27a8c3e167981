// Command momentum writes momentum_amd64.s.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"

	. "github.com/gradpress/gradpress/kernels/_generate/simd"
)

func main() {
	Start()
	Func("correctAVX2", "func(u, v, x []float32, m float32) (n int)",
		"correctAVX2 is w := m*u[i] + x[i]; u[i] = w; v[i] += w, the product rounded before, for the first n = len(x)&^31 entries.")
	u, v, m := Ptr("u"), Ptr("v"), Spread("m")
	n := Loop("x", 32, func(x Mem, i Register) {
		for k := range 4 {
			u, v, w := Mem{Base: u, Index: i, Scale: 4, Disp: 32 * k}, Mem{Base: v, Index: i, Scale: 4, Disp: 32 * k}, YMM()
			VMULPS(u, m, w)
			VADDPS(x.Offset(32*k), w, w)
			VMOVUPS(w, u)
			VADDPS(v, w, w)
			VMOVUPS(w, v)
		}
	})
	End(n)
	Generate()
}
